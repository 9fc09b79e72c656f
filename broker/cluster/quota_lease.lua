-- What is left of a quota that workers share, and how many workers there are. Each call is atomic.
--
-- A quota is one token bucket for each window of its rate, filled by the clock of Redis: a hash with the level of each
-- under its seconds, and the time of these levels under "at". A missing bucket is full. Amounts are thousandths.
--
--   beat   KEYS sorted set of the workers
--          ARGV op, incarnation of the worker, seconds that it is remembered
--          -> how many workers there are
--   lease  KEYS quota
--          ARGV op, number of workers, used without a lease, 1 if that was while Redis was away, else 0,
--               wanted for QoS 1 and 2, wanted for any QoS,
--               then for each window: count, seconds, how much of it is reserved for QoS 1 and 2
--          -> {granted for QoS 1 and 2, granted for any QoS}
local op = ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

if op == 'beat' then
  local lives = tonumber(ARGV[3])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - lives)
  redis.call('ZADD', KEYS[1], now, ARGV[2])
  redis.call('EXPIRE', KEYS[1], lives)
  return redis.call('ZCARD', KEYS[1])
end

if op == 'lease' then
  local SLICE = 0.1 -- seconds; as in broker/overload/quotas/lease.py
  local workers, used, settles = tonumber(ARGV[2]), tonumber(ARGV[3]) / 1000, ARGV[4] == '1'
  local firm, loose = tonumber(ARGV[5]), tonumber(ARGV[6])
  local at = tonumber(redis.call('HGET', KEYS[1], 'at') or now)
  local passed = math.max(0, now - at) -- after a failover the clock may be behind
  local levels, longest = {}, 1
  local for_firm, for_loose = math.huge, math.huge
  for i = 7, #ARGV, 3 do
    local count, seconds, kept = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
    local rate = count / seconds
    local level = tonumber(redis.call('HGET', KEYS[1], ARGV[i + 1]) or count)
    level = math.min(count, level + passed * rate)
    level = settles and math.max(math.min(0, level), level - used) or level - used
    -- Each worker leaves the others their parts of what comes in 100 ms, or the first to ask would get everything.
    local part = rate * SLICE / workers
    local mine = math.min(level, math.max(part, level - part * (workers - 1)))
    for_firm = math.min(for_firm, mine)
    for_loose = math.min(for_loose, math.min(mine, level - kept))
    levels[ARGV[i + 1]] = level
    longest = math.max(longest, seconds)
  end
  firm = math.floor(math.max(0, math.min(firm, for_firm * 1000)))
  loose = math.floor(math.max(0, math.min(loose, for_firm * 1000 - firm, for_loose * 1000 - firm)))
  for seconds, level in pairs(levels) do
    redis.call('HSET', KEYS[1], seconds, string.format('%.17g', level - (firm + loose) / 1000))
  end
  redis.call('HSET', KEYS[1], 'at', string.format('%.17g', math.max(now, at)))
  redis.call('EXPIRE', KEYS[1], longest + 1)
  return { firm, loose }
end

return redis.error_reply('ERR quota_lease.lua knows no ' .. tostring(op))
