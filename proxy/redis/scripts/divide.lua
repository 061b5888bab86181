-- Divides what a queue's targets carry among the processes that send to them, by what each asks for.
--
-- KEYS  hash of what each holder asked for and has, sorted set of holders
-- ARGV  holder; tokens that may be in flight over all; of our holder: how many it could use, how many it keeps to itself
--       (it never has more in flight, but for one request larger than everything), tokens of one request that does not fit
--       in its part (0: none), ms since when that waits, the most that it wants to be given (0: it leaves the queue)
-- returns  tokens that the holder may have in flight from now on
--
-- Parts are max-min fair: whoever asks for less than an equal part gets it, the others share the rest, and what nobody
-- asks for is spread over all, so that work which comes finds room. One request that fits in no part goes first, the
-- longest waiting of them.
--
-- A part grows only as far as others have let go. One that must shrink stays taken here until the holder, which has
-- heard of it by the reply, says that it keeps less. So the sum of what is taken is never above the capacity.
-- proxy/queues/capacity.py has the same in Python; a test holds the two together.
local queue, holders = KEYS[1], KEYS[2]
local me, capacity = ARGV[1], tonumber(ARGV[2])
local mine = {
  holder = me, demand = tonumber(ARGV[3]), held = tonumber(ARGV[4]), large = tonumber(ARGV[5]), waited = tonumber(ARGV[6]),
}
local most = tonumber(ARGV[7])
local TTL_S = 86400

if not redis.call('ZSCORE', holders, me) then
  return redis.error_reply('NOHOLDER')
end

if most == 0 then
  redis.call('HDEL', queue, me)
  return 0
end

local live = {}
for _, holder in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  live[holder] = true
end

local records, others_hold = {mine}, 0
local found = redis.call('HGETALL', queue)
for i = 1, #found, 2 do
  local holder = found[i]
  if not live[holder] then
    redis.call('HDEL', queue, holder)
  elseif holder ~= me then
    local demand, held, large, waited = string.match(found[i + 1], '^(%d+):(%d+):(%d+):(%d+)$')
    local record = {
      holder = holder, demand = tonumber(demand), held = tonumber(held), large = tonumber(large), waited = tonumber(waited),
    }
    records[#records + 1] = record
    others_hold = others_hold + record.held
  end
end

table.sort(records, function(a, b)
  if a.demand ~= b.demand then
    return a.demand < b.demand
  end
  return a.holder < b.holder
end)

local function divide(left, without)
  local count = #records - (without and 1 or 0)
  local after = count
  for _, record in ipairs(records) do
    if record ~= without then
      record.part = math.min(record.demand, math.floor(left / after))
      left = left - record.part
      after = after - 1
    end
  end
  local extra = count > 0 and math.floor(left / count) or 0
  local odd = left - extra * count
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
  if record.large > record.part and (not first or record.waited > first.waited) then
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
redis.call('HSET', queue, me, string.format('%.0f:%.0f:%.0f:%.0f', mine.demand, taken, mine.large, mine.waited))
redis.call('EXPIRE', queue, TTL_S)
return part
