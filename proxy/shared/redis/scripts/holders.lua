-- Who counts in the shared state: one holder a connection of a process, and what it holds goes back when it is gone.
--
-- KEYS[1]  sorted set of holders, each with when it was last seen, in ms of Redis's clock
-- ARGV     what to do (register, refresh or leave), prefix of all keys, boot id of the process, number of its connection,
--          ms after which a holder that was not seen is gone, now in ms (empty: Redis's clock; a test may give its own)
-- returns  how many live
--
-- A holder is `<boot>:<number>`. What it holds is a hash, `<prefix>held:<holder>`: for each key of a limit how many of it.
-- The sum over all holders is kept beside it, `<prefix>total:<key of the limit>`. Whatever counts for a holder does so
-- only while it is in the set, so a command of a connection that was given up changes nothing when it is executed late.
local holders = KEYS[1]
local act, prefix, boot, number = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local gone_ms = tonumber(ARGV[5])
local holder = boot .. ':' .. ARGV[4]
local TTL_S = 86400
-- In one call; the next one takes the rest.
local MOST_TRIMMED = 16

local now_ms = tonumber(ARGV[6])
if not now_ms then
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function give_back(whose)
  local held = prefix .. 'held:' .. whose
  local pairs_held = redis.call('HGETALL', held)
  for i = 1, #pairs_held, 2 do
    local total = prefix .. 'total:' .. pairs_held[i]
    if redis.call('DECRBY', total, pairs_held[i + 1]) <= 0 then
      redis.call('DEL', total)
    end
  end
  redis.call('DEL', held)
  redis.call('ZREM', holders, whose)
end

if act == 'leave' then
  give_back(holder)
  return redis.call('ZCARD', holders)
end

if act == 'register' then
  for _, other in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local other_boot, other_number = string.match(other, '^(.*):(%d+)$')
    if other_boot == boot then
      -- A registration that is executed late must not push out the one that followed it.
      if tonumber(other_number) >= number then
        return redis.error_reply('NOHOLDER a later connection of this process has registered')
      end
      give_back(other)
    end
  end
elseif not redis.call('ZSCORE', holders, holder) then
  return redis.error_reply('NOHOLDER this holder was not seen for too long')
end

redis.call('ZADD', holders, string.format('%d', now_ms), holder)
redis.call('EXPIRE', holders, TTL_S)
redis.call('EXPIRE', prefix .. 'held:' .. holder, TTL_S)
local oldest_ms, newest_ms = string.format('%d', now_ms - gone_ms), string.format('%d', now_ms + gone_ms)
for _, lost in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', '(' .. oldest_ms, 'LIMIT', 0, MOST_TRIMMED)) do
  give_back(lost)
end
-- Redis's clock was set back, or another server took over: one that died before would seem to live until then.
for _, lost in ipairs(redis.call('ZRANGEBYSCORE', holders, '(' .. newest_ms, '+inf', 'LIMIT', 0, MOST_TRIMMED)) do
  give_back(lost)
end
return redis.call('ZCOUNT', holders, oldest_ms, newest_ms)
