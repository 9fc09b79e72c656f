-- What the scripts share that move a session from its owner to another worker: GIVE_SESSION, sessions.lua and full.lua.
-- removals.py puts it before each of them.

-- The commit number of a worker expires once its sessions are being adopted: what became one of them would be read by
-- nobody. The taking worker has ended, and the server reads late what it had sent.
local ENDED = 'TAKERENDED the worker that is to own the session has ended'

local function has_ended(commit_number)
  return redis.call('TTL', commit_number) ~= -1
end

-- What a worker reads of a session.
local function session(record, queue, released)
  return {
    redis.pcall('HGETALL', record),
    redis.pcall('LINDEX', queue, 0),
    redis.pcall('LINDEX', queue, -1),
    redis.pcall('LLEN', queue),
    redis.pcall('SMEMBERS', released),
  }
end

-- *words*: index of the former owner, that of the new one, commit number of the new one, op, client id, keys of the
-- former owner, keys of the new one, Unix time in seconds. 1: the session is that of the new owner; 0: there is none.
local function give(words)
  local client, from, to = words[5], 6, 9
  local value = redis.call('HGET', words[1], client)
  if not value or redis.call('EXISTS', words[from] .. client) == 0 then
    return 0
  end
  if has_ended(words[3]) then
    return redis.error_reply(ENDED)
  end
  redis.call('HDEL', words[1], client)
  redis.call('HSET', words[2], client, value)
  for kind = 0, 2 do
    if redis.call('EXISTS', words[from + kind] .. client) == 1 then
      redis.call('RENAME', words[from + kind] .. client, words[to + kind] .. client)
    end
  end
  redis.pcall('HSETNX', words[to] .. client, '\0', words[12])
  return 1
end
