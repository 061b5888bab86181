-- Takes from every bucket of a request, or from none; a refusal takes nothing anywhere.
--
-- KEYS  the request buckets and then the token buckets ("rated"), the totals of concurrency ("counted"), and where there
--       are any of those: the holders, and what our holder holds.
-- ARGV  holder, clock in microseconds (empty: Redis's own), whether to take (1) or only to look (0), tokens,
--       how many request buckets, how many rated, how many counted; for each rated its rate a minute and its burst; for
--       each counted the most in flight and its field of what the holder holds.
-- Gives doubles: whether it was admitted, the time, each rated bucket's level and each counted total, as they are now.
--
-- A bucket is two doubles, its level and the time of it. proxy/admit/limits/bucket.py does the same operations in the same
-- order. What is kept goes away by itself a minute after the bucket is full, since none is the same as a full one.
local DAY_S = 86400
local holder, clock, takes, tokens = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local requests, rated, counted = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local first_counted = 7 + 2 * rated

-- A server that was frozen executes late what was sent on a connection that its sender gave up. Rate tokens taken so are
-- lost until they are refilled; a place in flight would be lost for good, so it is the holder's and goes with it.
if takes and counted > 0 and not redis.call('ZSCORE', KEYS[rated + counted + 1], holder) then
  return redis.error_reply('NOHOLDER')
end

local now = clock
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function keep(i, level)
  local rate, burst = tonumber(ARGV[6 + 2 * i]), tonumber(ARGV[7 + 2 * i])
  local ttl_ms = math.min((burst - level) * 60000 / rate + 60000, 2592000000)
  redis.call('SET', KEYS[i], struct.pack('<dd', level, now), 'PX', string.format('%d', ttl_ms))
end

local found = redis.call('MGET', unpack(KEYS, 1, rated + counted))
local levels, ahead, admitted = {}, {}, takes

for i = 1, rated do
  local rate, burst = tonumber(ARGV[6 + 2 * i]), tonumber(ARGV[7 + 2 * i])
  local level = burst
  if found[i] then
    local kept, at = struct.unpack('<dd', found[i])
    if now > at then
      kept = kept + (now - at) * rate / 60000000
    elseif now < at then
      ahead[#ahead + 1] = i
    end
    level = math.min(kept, burst)
  end
  if level < (i <= requests and 1 or tokens) then
    admitted = false
  end
  levels[i] = level
end
for i = 1, counted do
  local total = tonumber(found[rated + i] or 0)
  if total >= tonumber(ARGV[first_counted + 2 * i - 1]) then
    admitted = false
  end
  levels[rated + i] = total
end

if admitted then
  for i = 1, rated do
    levels[i] = levels[i] - (i <= requests and 1 or tokens)
    keep(i, levels[i])
  end
  for i = 1, counted do
    local total = KEYS[rated + i]
    levels[rated + i] = redis.call('INCR', total)
    redis.call('EXPIRE', total, DAY_S)
    -- The heartbeat keeps what is held from going away; only one that is new may not have heard of it.
    if redis.call('HINCRBY', KEYS[rated + counted + 2], ARGV[first_counted + 2 * i], 1) == 1 then
      redis.call('EXPIRE', KEYS[rated + counted + 2], DAY_S)
    end
  end
elseif takes then
  -- Redis's clock was set back. A bucket that is empty would not fill until the clock is where it was.
  for _, i in ipairs(ahead) do
    keep(i, levels[i])
  end
end
return struct.pack('<' .. string.rep('d', rated + counted + 2), admitted and 1 or 0, now, unpack(levels))
