-- Durable sessions become those of another worker, and are read. Each call is atomic.
--
-- broker/store/redis/keys.py describes the keys. But for a fence, all keys of a call are in one slice. Those of sessions
-- end in a client id, and are given without it, in the order: records, queues, released.
--
--   adopt  a worker has ended, and all its sessions are those of another one
--          KEYS index of the former owner, index of the new one, fence of the former owner
--          ARGV op, how many at most, keys of the former owner, keys of the new one, Unix time in seconds, how many
--          bytes of records to return, seconds that the fence stays
--          -> how many there were (less than that many: none is left), then for each {client id, record as of HGETALL};
--             a client id alone: read that session, as it has messages, or as the answer would be longer; or the name
--             of a dropped queue (dropped_queues.py)
--   give   a worker gives one session away
--          KEYS both indexes; ARGV op, client id, keys of the former owner, keys of the new one
--          -> 1; 0: there is no such session, or it was taken before: this may arrive long after the death of the worker,
--             behind writes to keys that nobody reads any more
--   take   a worker takes one session from a worker that has ended or does not answer
--          KEYS as for adopt; ARGV as for adopt up to the time, with the client id
--          -> as read, of that session. A call may be repeated, if its answer was lost: then the session is that of the
--             new worker, and what is under the keys of the former one was written by that worker since
--   read   ARGV op, keys, client ids
--          -> for each {record as of HGETALL, first pack, last pack, number of packs, released}
local op = ARGV[1]
local LEFT = '\0' -- the field of a record with the time at which the client left (record.py)
local DROPPED = '\0d' -- the beginning of the name of a dropped queue (dropped_queues.py)

local function exists(key)
  return redis.call('EXISTS', key) == 1
end

local function move(client)
  for kind = 3, 5 do
    if exists(ARGV[kind] .. client) then
      redis.call('RENAME', ARGV[kind] .. client, ARGV[kind + 3] .. client)
    end
  end
end

local function left(client)
  redis.pcall('HSETNX', ARGV[6] .. client, LEFT, ARGV[9]) -- its client was connected; or it is no hash
end

local function session(record, queue, released)
  return {
    redis.pcall('HGETALL', record),
    redis.pcall('LINDEX', queue, 0),
    redis.pcall('LINDEX', queue, -1),
    redis.pcall('LLEN', queue),
    redis.pcall('SMEMBERS', released),
  }
end

-- A record without LEFT gets it: its client was connected. Returns its bytes.
local function complete(client, record)
  local bytes, connected = 0, true
  for i = 1, #record, 2 do
    bytes = bytes + #record[i] + #record[i + 1]
    connected = connected and record[i] ~= LEFT
  end
  if connected then
    left(client)
    record[#record + 1] = LEFT
    record[#record + 1] = ARGV[9]
  end
  return bytes
end

-- Most sessions have a record, and nothing beside it: such a session costs two commands, and a part of three.
if op == 'adopt' then
  local clients = redis.call('SPOP', KEYS[1], ARGV[2])
  local answers, bytes = { #clients }, 0
  if #clients == 0 then
    return answers
  end
  if redis.call('LINDEX', KEYS[3], -1) ~= '' then
    -- what the former owner has sent may arrive after this: then it reduces no count (shared_bodies.py)
    redis.call('RPUSH', KEYS[3], '')
    redis.call('EXPIRE', KEYS[3], ARGV[11])
  end
  local beside, adopted = {}, {}
  for i, client in ipairs(clients) do
    beside[2 * i - 1], beside[2 * i] = ARGV[4] .. client, ARGV[5] .. client
  end
  local present = redis.call('EXISTS', unpack(beside))
  local ours = redis.call('SMISMEMBER', KEYS[2], unpack(clients))
  for i, client in ipairs(clients) do
    local record = redis.pcall('HGETALL', ARGV[3] .. client) -- an error, if it is no hash
    if string.sub(client, 1, 2) == DROPPED then -- which has no record
      adopted[#adopted + 1] = client
      move(client)
      answers[#answers + 1] = client
    elseif #record == 0 and not record.err or ours[i] == 1 then
      -- without a record, or written by the former owner after this session had been taken from it
      redis.call('DEL', ARGV[3] .. client, beside[2 * i - 1], beside[2 * i])
    else
      adopted[#adopted + 1] = client
      if record.err or present > 0 and redis.call('EXISTS', beside[2 * i - 1], beside[2 * i]) > 0 then
        move(client)
        left(client)
        answers[#answers + 1] = client
      else
        redis.call('RENAME', ARGV[3] .. client, ARGV[6] .. client)
        bytes = bytes + complete(client, record)
        answers[#answers + 1] = bytes > tonumber(ARGV[10]) and client or { client, record }
      end
    end
  end
  if #adopted > 0 then
    redis.call('SADD', KEYS[2], unpack(adopted))
  end
  return answers
end

if op == 'give' or op == 'take' then
  local client = ARGV[2]
  if op == 'take' and redis.call('SISMEMBER', KEYS[2], client) == 1 then
    redis.call('DEL', ARGV[3] .. client, ARGV[4] .. client, ARGV[5] .. client)
    redis.call('SREM', KEYS[1], client)
  end
  local found = redis.call('SISMEMBER', KEYS[1], client) == 1 and exists(ARGV[3] .. client)
  if found then
    redis.call('SREM', KEYS[1], client)
    redis.call('SADD', KEYS[2], client)
    move(client)
  end
  if op == 'give' then
    return found and 1 or 0
  end
  if found then
    redis.call('RPUSH', KEYS[3], client)
    left(client)
  end
  return session(ARGV[6] .. client, ARGV[7] .. client, ARGV[8] .. client)
end

if op == 'read' then
  local answers = {}
  for i = 5, #ARGV do
    answers[#answers + 1] = session(ARGV[2] .. ARGV[i], ARGV[3] .. ARGV[i], ARGV[4] .. ARGV[i])
  end
  return answers
end

return redis.error_reply('ERR sessions.lua knows no ' .. tostring(op))
