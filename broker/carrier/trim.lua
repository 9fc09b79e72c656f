-- Deletes the oldest records of a partition: KEYS = stream, head; ARGV = retention in milliseconds, and in bytes.
-- Both rise with the offset, so the first record to keep is found by halves. Returns how many were deleted.
local head = redis.call('HMGET', KEYS[2], 'next', 'bytes')
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not head[1] or not oldest then
    return 0
end
local time = redis.call('TIME')
local since = time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1]
local from = head[2] - ARGV[2]
local function stays(entry)
    return tonumber(entry[2][4]) >= since and tonumber(entry[2][6]) >= from
end
if stays(oldest) then
    return 0
end
local gone = tonumber(string.match(oldest[1], '%d+'))  -- the id of a record that goes
local kept = head[1] + 1                               -- the id of one that stays, or of the next one
while kept - gone > 1 do
    local middle = math.floor((gone + kept) / 2)
    local entry = redis.call('XRANGE', KEYS[1], string.format('%d-0', middle), string.format('%d-0', middle))[1]
    if stays(entry) then
        kept = middle
    else
        gone = middle
    end
end
return redis.call('XTRIM', KEYS[1], 'MINID', string.format('%d-0', kept))
