-- Returns one sealed answer; nothing where there is none.
-- KEYS: the answer.
return redis.call('GET', KEYS[1])
