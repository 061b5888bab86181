-- Corrects token buckets from the estimate to the truth, and ends a request's concurrency.
--
-- KEYS  the token buckets, the totals of concurrency, and what our holder holds.
-- ARGV  clock in microseconds (empty: Redis's own), the correction (positive: a refund; negative: a debt), how many
--       buckets, how many totals; for each bucket its rate a minute and its burst; for each total its field of what the holder holds.
--
-- A holder that is gone has given back its places already: what it does not hold is not taken from the total again.
local clock, correction, buckets, totals = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local held = KEYS[buckets + totals + 1]

local now = clock
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

for i = 1, buckets do
  local rate, burst = tonumber(ARGV[3 + 2 * i]), tonumber(ARGV[4 + 2 * i])
  local found = redis.call('GET', KEYS[i])
  local level = burst
  if found then
    local kept, at = struct.unpack('<dd', found)
    if now > at then
      kept = kept + (now - at) * rate / 60000000
    end
    level = math.min(kept, burst)
  end
  level = math.min(level + correction, burst)
  local ttl_ms = math.min((burst - level) * 60000 / rate + 60000, 2592000000)
  redis.call('SET', KEYS[i], struct.pack('<dd', level, now), 'PX', string.format('%d', ttl_ms))
end

for i = 1, totals do
  local field = ARGV[4 + 2 * buckets + i]
  local left = redis.call('HINCRBY', held, field, -1)
  if left <= 0 then
    redis.call('HDEL', held, field)
  end
  if left >= 0 and redis.call('DECR', KEYS[buckets + i]) <= 0 then
    redis.call('DEL', KEYS[buckets + i])
  end
end
return 1
