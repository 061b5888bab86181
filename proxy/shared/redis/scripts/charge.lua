-- Charges buckets with what a process took by its own share while Redis was away.
--
-- KEYS  since when Redis has its present memory, the last charge of this process, and the buckets.
-- ARGV  clock in microseconds (empty: Redis's own), the charge's number (empty: not told again if its reply is lost); for
--       each bucket its rate a minute, its burst, what is owed (negative: a refund), and the level that the process was last
--       told, with the time of it (negative: none).
-- Gives the time since when Redis has its present memory. A charge that was executed already changes nothing.
--
-- What the process was told before Redis lost its memory is worth more than a bucket that is full because nobody remembers.
local DAY_MS = 86400000
local YOUNG_US = 60000000
local clock, number = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = clock
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local born = tonumber(redis.call('GET', KEYS[1]) or now)
redis.call('SET', KEYS[1], string.format('%d', born), 'PX', DAY_MS)
if number then
  if tonumber(redis.call('GET', KEYS[2]) or 0) >= number then
    return string.format('%d', born)
  end
  redis.call('SET', KEYS[2], ARGV[2], 'PX', DAY_MS)
end

local function refilled(level, at, rate, burst)
  if now > at then
    level = level + (now - at) * rate / 60000000
  end
  return math.min(level, burst)
end

for i = 3, #KEYS do
  local first = 3 + (i - 3) * 5
  local rate, burst, owed = tonumber(ARGV[first]), tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local known, told = tonumber(ARGV[first + 3]), tonumber(ARGV[first + 4])
  local found = redis.call('GET', KEYS[i])
  local level = burst
  if found then
    local kept, at = struct.unpack('<dd', found)
    level = refilled(kept, at, rate, burst)
  end
  if now - born < YOUNG_US then
    -- What a process was told does not hold what others were charged with since; they may come first.
    local charged = tonumber(redis.call('GET', KEYS[i] .. ':charged') or 0)
    if told >= 0 and told < born then
      level = math.min(level, refilled(known, told, rate, burst) - charged)
    end
    redis.call('SET', KEYS[i] .. ':charged', string.format('%.17g', charged + math.max(owed, 0)), 'PX', YOUNG_US / 1000)
  end
  level = math.min(level - owed, burst)
  local ttl_ms = math.min((burst - level) * 60000 / rate + 60000, 2592000000)
  redis.call('SET', KEYS[i], struct.pack('<dd', level, now), 'PX', string.format('%d', ttl_ms))
end
return string.format('%d', born)
