-- Hands a host's news to the other hosts, and theirs to it, in one round trip.
--
-- KEYS  stream of news
-- ARGV  the host; id of the last entry that it has seen (empty: none, it begins with what is newest); its news (empty: none);
--       entries that the stream keeps; entries that it is given at most
-- returns  id of the last entry that it has seen now, then the news of others, oldest first
--
-- News may be lost: who is late finds the oldest gone.
local stream, host, seen, news = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local TTL_S = 60

if seen == '' then
  local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
  seen = #newest > 0 and newest[1][1] or '0-0'
end

local answer = {seen}
local found = redis.call('XREAD', 'COUNT', ARGV[5], 'STREAMS', stream, seen)
for _, entry in ipairs(found and found[1] and found[1][2] or {}) do
  answer[1] = entry[1]
  if entry[2][2] ~= host then
    answer[#answer + 1] = entry[2][4]
  end
end

if news ~= '' then
  redis.call('XADD', stream, 'MAXLEN', '~', ARGV[4], '*', 'host', host, 'news', news)
  redis.call('EXPIRE', stream, TTL_S)
end
return answer
