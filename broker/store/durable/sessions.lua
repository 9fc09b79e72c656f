-- The durable sessions of a worker that has ended become those of another one, and are read. Each call is atomic.
--
-- broker/store/redis/keys.py describes the keys. All keys of a call are in one slice. Those of sessions end in a client
-- id, and are given without it, in the order: records, queues, released.
--
--   adopt  KEYS index of the former owner, index of the new one
--          ARGV op, how many at most, keys of the former owner, keys of the new one, Unix time in seconds
--          -> how many there were; less than that many: none is left
--   read   ARGV op, keys, client ids
--          -> for each {record as of HGETALL, first pack, last pack, number of packs, released}
local op = ARGV[1]
local LEFT = '\0' -- the field of a record with the time at which the client left (record.py)

if op == 'adopt' then
  local clients = redis.call('SPOP', KEYS[1], ARGV[2])
  for _, client in ipairs(clients) do
    local has_record = redis.call('EXISTS', ARGV[3] .. client) == 1
    if has_record and redis.call('SADD', KEYS[2], client) == 1 then
      for kind = 3, 5 do
        if redis.call('EXISTS', ARGV[kind] .. client) == 1 then
          redis.call('RENAME', ARGV[kind] .. client, ARGV[kind + 3] .. client)
        end
      end
      redis.pcall('HSETNX', ARGV[6] .. client, LEFT, ARGV[9]) -- its client was connected; or it is no hash
    else -- without a record, or written by the former owner after this session had been taken from it
      redis.call('DEL', ARGV[3] .. client, ARGV[4] .. client, ARGV[5] .. client)
    end
  end
  return #clients
end

if op == 'read' then
  local answers = {}
  for i = 5, #ARGV do
    local record, queue, released = ARGV[2] .. ARGV[i], ARGV[3] .. ARGV[i], ARGV[4] .. ARGV[i]
    answers[#answers + 1] = {
      redis.pcall('HGETALL', record),
      redis.pcall('LINDEX', queue, 0),
      redis.pcall('LINDEX', queue, -1),
      redis.pcall('LLEN', queue),
      redis.pcall('SMEMBERS', released),
    }
  end
  return answers
end

return redis.error_reply('ERR sessions.lua knows no ' .. tostring(op))
