-- Counts what a holder has in flight: everything after it was registered, and later what could not be told in its time.
--
-- KEYS  the holders, what our holder holds, and the totals of concurrency.
-- ARGV  holder; for each total its field of what the holder holds, and how many more (negative: fewer) there are.
--
-- It takes above the limit too: these requests run.
local DAY_S = 86400
local holder = ARGV[1]
if not redis.call('ZSCORE', KEYS[1], holder) then
  return redis.error_reply('NOHOLDER')
end
for i = 3, #KEYS do
  local field, more = ARGV[2 * i - 4], tonumber(ARGV[2 * i - 3])
  more = math.max(more, 0 - tonumber(redis.call('HGET', KEYS[2], field) or 0))
  more = string.format('%d', more)
  if redis.call('HINCRBY', KEYS[2], field, more) <= 0 then
    redis.call('HDEL', KEYS[2], field)
  end
  if redis.call('INCRBY', KEYS[i], more) <= 0 then
    redis.call('DEL', KEYS[i])
  else
    redis.call('EXPIRE', KEYS[i], DAY_S)
  end
end
redis.call('EXPIRE', KEYS[2], DAY_S)
return 1
