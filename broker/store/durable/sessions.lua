-- Durable sessions become those of another worker, and are read. Each call is atomic.
--
-- broker/store/redis/keys.py describes the keys. But for fences, commit numbers and the workers, all keys of a call are
-- in one slice. Those of sessions end in a client id, and are given without it, in the order records, queues, released.
--
--   count  KEYS an index; ARGV op
--          -> how many entries it has
--   scan   a page of an index that is a set, as HSCAN of one that is a hash
--          KEYS the index; ARGV op, cursor, how many entries, about
--          -> {next cursor, {client id, '', ...}}
--   adopt  a worker has ended, and some of its sessions are those of another one
--          KEYS index of the former owner, index of the new one, fence of the former owner
--          ARGV op, keys of the former owner, keys of the new one, Unix time in seconds, how many bytes of records to
--          return, seconds that the fence stays, client ids
--          -> for each that is there {client id, record as of HGETALL}; a client id alone: read that session, as it has
--             messages, or as the answer would be longer; or the name of a dropped queue (dropped_queues.py)
--   take   a worker takes one session from a worker that has ended or does not answer; to give one away is a script of
--          its own (removals.py)
--          KEYS both indexes, commit number of the new owner, fence of the former owner
--          ARGV op, client id, keys of the former owner, keys of the new one, Unix time in seconds
--          -> as read, of that session; an error if the new owner has ended (giving.lua). A call may be repeated, if its
--             answer was lost: then the session is that of the new worker, and what is under the keys of the former one
--             was written by that worker since
--   find   which worker of any node has a session; it may be the one that asks
--          KEYS the nodes; ARGV op, client id, node of the worker that asks, how the keys begin of the workers of a
--          node, of indexes, and of records
--          -> {incarnation, shard, node}; nothing: none has it
--   read   ARGV op, keys, client ids
--          -> for each {record as of HGETALL, first pack, last pack, number of packs, released}
--
-- The index of a worker that ended before DURABLE_FORMAT 3 is a set, which has no values. Nobody writes such a set: it
-- becomes empty as its sessions are adopted.
local op = ARGV[1]
local LEFT = '\0' -- the field of a record with the time at which the client left (record.py)
local DROPPED = '\0d' -- the beginning of the name of a dropped queue (dropped_queues.py)

local function exists(key)
  return redis.call('EXISTS', key) == 1
end

-- What the former owner says of its sessions in its index: a list as of HMGET.
local function values_of(clients)
  if redis.call('TYPE', KEYS[1]).ok == 'set' then
    return {}
  end
  return redis.call('HMGET', KEYS[1], unpack(clients))
end

local function has(index, client)
  return redis.call(redis.call('TYPE', index).ok == 'set' and 'SISMEMBER' or 'HEXISTS', index, client) == 1
end

local function leave_former(clients)
  local remove = redis.call('TYPE', KEYS[1]).ok == 'set' and 'SREM' or 'HDEL'
  redis.call(remove, KEYS[1], unpack(clients))
end

-- ARGV has the keys of the former owner from *at* on, those of the new one, and the time.
local function move(client, at)
  for kind = at, at + 2 do
    if exists(ARGV[kind] .. client) then
      redis.call('RENAME', ARGV[kind] .. client, ARGV[kind + 3] .. client)
    end
  end
end

local function left(client, at)
  redis.pcall('HSETNX', ARGV[at + 3] .. client, LEFT, ARGV[at + 6]) -- its client was connected; or it is no hash
end

-- A record without LEFT gets it: its client was connected. Returns its bytes.
local function complete(client, record)
  local bytes, connected = 0, true
  for i = 1, #record, 2 do
    bytes = bytes + #record[i] + #record[i + 1]
    connected = connected and record[i] ~= LEFT
  end
  if connected then
    left(client, 2)
    record[#record + 1] = LEFT
    record[#record + 1] = ARGV[8]
  end
  return bytes
end

if op == 'count' then
  return redis.call(redis.call('TYPE', KEYS[1]).ok == 'set' and 'SCARD' or 'HLEN', KEYS[1])
end

if op == 'scan' then
  local page, entries = redis.call('SSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3]), {}
  for i, client in ipairs(page[2]) do
    entries[2 * i - 1], entries[2 * i] = client, ''
  end
  return { page[1], entries }
end

-- Most sessions have a record, and nothing beside it: such a session costs two commands, and a part of four.
if op == 'adopt' then
  local clients, beside, adopted, answers, bytes = {}, {}, {}, {}, 0
  for i = 11, #ARGV do
    clients[i - 10] = ARGV[i]
  end
  for i, client in ipairs(clients) do
    beside[2 * i - 1], beside[2 * i] = ARGV[3] .. client, ARGV[4] .. client
  end
  local values = values_of(clients)
  leave_former(clients)
  if redis.call('LINDEX', KEYS[3], -1) ~= '' then
    -- what the former owner has sent may arrive after this: then it reduces no count (shared_bodies.py)
    redis.call('RPUSH', KEYS[3], '')
    redis.call('EXPIRE', KEYS[3], ARGV[10])
  end
  local present = redis.call('EXISTS', unpack(beside))
  local ours = redis.call('HMGET', KEYS[2], unpack(clients))
  for i, client in ipairs(clients) do
    local record = redis.pcall('HGETALL', ARGV[2] .. client) -- an error, if it is no hash
    local value = values[i] or ''
    if string.sub(client, 1, 2) == DROPPED then -- which has no record
      adopted[#adopted + 1] = client
      adopted[#adopted + 1] = value
      move(client, 2)
      answers[#answers + 1] = client
    elseif #record == 0 and not record.err or ours[i] then
      -- without a record, or written by the former owner after this session had been taken from it
      redis.call('DEL', ARGV[2] .. client, beside[2 * i - 1], beside[2 * i])
    else
      adopted[#adopted + 1] = client
      adopted[#adopted + 1] = value
      if record.err or present > 0 and redis.call('EXISTS', beside[2 * i - 1], beside[2 * i]) > 0 then
        move(client, 2)
        left(client, 2)
        answers[#answers + 1] = client
      else
        redis.call('RENAME', ARGV[2] .. client, ARGV[5] .. client)
        bytes = bytes + complete(client, record)
        answers[#answers + 1] = bytes > tonumber(ARGV[9]) and client or { client, record }
      end
    end
  end
  if #adopted > 0 then
    redis.call('HSET', KEYS[2], unpack(adopted))
  end
  return answers
end

if op == 'take' then
  local client = ARGV[2]
  local value = values_of({ client })[1] or ''
  if has(KEYS[2], client) then
    redis.call('DEL', ARGV[3] .. client, ARGV[4] .. client, ARGV[5] .. client)
    leave_former({ client })
  end
  local found = has(KEYS[1], client) and exists(ARGV[3] .. client)
  if found and has_ended(KEYS[3]) then
    return redis.error_reply(ENDED)
  end
  if found then
    leave_former({ client })
    redis.call('HSET', KEYS[2], client, value)
    move(client, 3)
    left(client, 3)
    redis.call('RPUSH', KEYS[4], client)
  end
  return session(ARGV[6] .. client, ARGV[7] .. client, ARGV[8] .. client)
end

if op == 'find' then
  local client, nodes = ARGV[2], redis.call('HKEYS', KEYS[1])
  table.insert(nodes, 1, ARGV[3]) -- which may not be among them yet
  for n, node in ipairs(nodes) do
    local workers = (n == 1 or node ~= ARGV[3]) and redis.call('HGETALL', ARGV[4] .. node) or {}
    for i = 1, #workers, 2 do
      local worker = workers[i]
      -- an index may name a session whose record is gone: `take` would not take it, whoever else has it
      if has(ARGV[5] .. worker, client) and exists(ARGV[6] .. worker .. ':' .. client) then
        return { worker, workers[i + 1], node }
      end
    end
  end
  return {}
end

if op == 'read' then
  local answers = {}
  for i = 5, #ARGV do
    answers[#answers + 1] = session(ARGV[2] .. ARGV[i], ARGV[3] .. ARGV[i], ARGV[4] .. ARGV[i])
  end
  return answers
end

return redis.error_reply('ERR sessions.lua knows no ' .. tostring(op))
