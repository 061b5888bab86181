-- Tells what a host learnt of targets, and answers with all that any process of any host told.
--
-- KEYS  hash of them
-- ARGV  most that are kept; then of each new one its name, seconds that are left, and what was learnt, in words
-- returns  of each its name, seconds that are left, and what was learnt
--
-- Each counts from when it was told first. Times are by the clock here: those of hosts have nothing in common.
local TTL_S = 86400
local now = tonumber(redis.call('TIME')[1])

for i = 2, #ARGV, 3 do
  if redis.call('HLEN', KEYS[1]) < tonumber(ARGV[1]) then
    local left = math.min(tonumber(ARGV[i + 1]), TTL_S)
    redis.call('HSETNX', KEYS[1], ARGV[i], string.format('%.0f %s', now + left, ARGV[i + 2]))
    redis.call('EXPIRE', KEYS[1], TTL_S)
  end
end

local answer = {}
local kept = redis.call('HGETALL', KEYS[1])
for i = 1, #kept, 2 do
  local until_s, found = string.match(kept[i + 1], '^(%d+) (.*)$')
  if until_s and tonumber(until_s) > now then
    answer[#answer + 1] = kept[i]
    answer[#answer + 1] = string.format('%.0f', tonumber(until_s) - now)
    answer[#answer + 1] = found
  else
    redis.call('HDEL', KEYS[1], kept[i])
  end
end
return answer
