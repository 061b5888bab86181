-- Divides what a queue's targets carry among the processes that send to them, by whose work waits where.
--
-- KEYS  hash of what each holder asked for and has, sorted set of holders, hash of how large the queue is to each holder and
--       whose work it has
-- ARGV  holder; tokens that may be in flight over all, as our holder knows it; of our holder: how many it could use, how many it
--       keeps to itself (it never has more in flight, but for one request larger than everything), tokens of one request that does
--       not fit in its part (0: none), ms since when that waits, the most that it wants to be given (0: it leaves the queue), and
--       its teams, `checksum,weight in thousandths,tokens;...`
-- returns  tokens that the holder may have in flight from now on, tokens that all of them divide
--
-- What is divided is the middle one of the sizes that holders know. Between teams it is divided by their weights, max-min fair:
-- whoever asks for less than its share gets it, the others share the rest. A team's part is divided between the holders where
-- it has work, by how much, so that its callers wait equally long whichever process they met. What nobody asks for is spread
-- over all, so that work which comes finds room. One request that fits in no part goes first: the one that began to wait first,
-- by the clock here, as what holders say at different times of how long they wait cannot be compared.
--
-- A part grows only as far as others have let go. One that must shrink stays taken here until the holder, which has
-- heard of it by the reply, says that it keeps less. So the sum of what is taken is never above the capacity.
-- proxy/admit/queues/capacity.py has the same in Python; a test holds the two together.
local queue, holders, queue_teams = KEYS[1], KEYS[2], KEYS[3]
local me = ARGV[1]
local most = tonumber(ARGV[7])
local TTL_S = 86400
local SAME_MS = 500

local function teams_of(text)
  local teams = {}
  for team, weight, tokens in string.gmatch(text, '(%w+),(%d+),(%d+)') do
    teams[#teams + 1] = {team = team, weight = tonumber(weight), tokens = tonumber(tokens)}
  end
  return teams
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local mine = {
  holder = me, whole = tonumber(ARGV[2]), demand = tonumber(ARGV[3]), held = tonumber(ARGV[4]), large = tonumber(ARGV[5]),
  waited = tonumber(ARGV[6]), teams = teams_of(ARGV[8]),
}

if not redis.call('ZSCORE', holders, me) then
  return redis.error_reply('NOHOLDER')
end

if most == 0 then
  redis.call('HDEL', queue, me)
  redis.call('HDEL', queue_teams, me)
  return {0, 0}
end

local live = {}
for _, holder in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  live[holder] = true
end

local details, flat = {}, redis.call('HGETALL', queue_teams)
for i = 1, #flat, 2 do
  details[flat[i]] = flat[i + 1]
end

mine.since = 0
if mine.large > 0 then
  mine.since = now - mine.waited
  local before = tonumber(string.match(details[me] or '', '^(%d+);') or 0)
  if math.abs(mine.since - before) <= SAME_MS then
    mine.since = before
  end
end

local records, others_hold = {mine}, 0
local found = redis.call('HGETALL', queue)
for i = 1, #found, 2 do
  local holder = found[i]
  if not live[holder] then
    redis.call('HDEL', queue, holder)
    redis.call('HDEL', queue_teams, holder)
  elseif holder ~= me then
    local demand, held, large, waited = string.match(found[i + 1], '^(%d+):(%d+):(%d+):(%d+)$')
    -- A process of an earlier version says nothing more.
    local since, whole, teams = string.match(details[holder] or '', '^(%d+);(%d+);(.*)$')
    local record = {
      holder = holder, demand = tonumber(demand), held = tonumber(held), large = tonumber(large),
      since = tonumber(since) or now - tonumber(waited), whole = tonumber(whole) or 0, teams = teams_of(teams or ''),
    }
    records[#records + 1] = record
    others_hold = others_hold + record.held
  end
end

local sizes = {}
for _, record in ipairs(records) do
  sizes[#sizes + 1] = record.whole > 0 and record.whole or mine.whole
end
table.sort(sizes)
local capacity = sizes[math.floor(#sizes / 2) + 1]

table.sort(records, function(a, b)
  if a.demand ~= b.demand then
    return a.demand < b.demand
  end
  return a.holder < b.holder
end)

-- The teams' tokens are what is there now; the demand has room for what comes next.
for _, record in ipairs(records) do
  local tokens = 0
  for _, use in ipairs(record.teams) do
    tokens = tokens + use.tokens
  end
  if tokens == 0 then
    record.teams = {{team = record.holder, weight = 1000, tokens = record.demand}}
  else
    for _, use in ipairs(record.teams) do
      use.tokens = math.floor(use.tokens * record.demand / tokens)
    end
  end
end

local function divide(left, without)
  local teams, order, weights, count = {}, {}, 0, 0
  for _, record in ipairs(records) do
    if record ~= without then
      count = count + 1
      record.part = 0
      for _, use in ipairs(record.teams) do
        local team = teams[use.team]
        if not team then
          team = {name = use.team, weight = 1, tokens = 0, uses = {}}
          teams[use.team] = team
          order[#order + 1] = team
        end
        team.weight = math.max(team.weight, use.weight)
        team.tokens = team.tokens + use.tokens
        team.uses[#team.uses + 1] = {record = record, tokens = use.tokens}
      end
    end
  end
  for _, team in ipairs(order) do
    team.key = math.floor(team.tokens * 1000 / team.weight)
    weights = weights + team.weight
  end
  table.sort(order, function(a, b)
    if a.key ~= b.key then
      return a.key < b.key
    end
    return a.name < b.name
  end)
  local spare = left
  for _, team in ipairs(order) do
    local given = math.min(team.tokens, math.floor(left * team.weight / weights))
    left = left - given
    weights = weights - team.weight
    for _, use in ipairs(team.uses) do
      local share = team.tokens > 0 and math.floor(given * use.tokens / team.tokens) or 0
      use.record.part = use.record.part + share
      spare = spare - share
    end
  end
  local extra = count > 0 and math.floor(spare / count) or 0
  local odd = spare - extra * count
  for _, record in ipairs(records) do
    if record ~= without then
      record.part = record.part + extra
      if odd > 0 then
        record.part = record.part + 1
        odd = odd - 1
      end
    end
  end
end

divide(capacity, nil)
local first = nil
for _, record in ipairs(records) do
  if record.large > record.part and (not first or record.since < first.since) then
    first = record
  end
end
if first then
  first.part = math.min(first.large, capacity)
  divide(capacity - first.part, first)
end

local part = math.min(mine.part, most)
local taken = mine.held
if part > taken then
  part = math.max(taken, math.min(part, capacity - others_hold))
  taken = part
end
redis.call('HSET', queue, me, string.format('%d:%d:%d:%d', mine.demand, taken, mine.large, mine.waited))
redis.call('HSET', queue_teams, me, string.format('%d;%d;', mine.since, mine.whole) .. ARGV[8])
redis.call('EXPIRE', queue, TTL_S)
redis.call('EXPIRE', queue_teams, TTL_S)
return {part, capacity}
