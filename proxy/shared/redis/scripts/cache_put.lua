-- Keeps one sealed answer, unless what was written in this window and the one before is as much as may be kept: nothing that is older is
-- there any more. A server that is full keeps nothing, which is no error.
-- KEYS: the answer, the bytes of this window, those of the one before.
-- ARGV: the sealed answer, for how many seconds, the most bytes, the seconds of two windows.
local size = #ARGV[1]
local used = tonumber(redis.call('GET', KEYS[2]) or '0') + tonumber(redis.call('GET', KEYS[3]) or '0')
if used + size > tonumber(ARGV[3]) then
  return 0
end
local kept = redis.pcall('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
if kept.err then
  return 0
end
redis.pcall('INCRBY', KEYS[2], size)
redis.pcall('EXPIRE', KEYS[2], ARGV[4])
return 1
