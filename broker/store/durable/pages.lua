-- A page of a queue for operators: by position, so it does not matter what was added or removed meanwhile.
--
--   KEYS queue; ARGV position, how many packs at most, bytes after which no further pack is read
--   -> index of the first of them in the list; packs: the one that may have the message at that position, and at least
--      one behind it
--
-- A binary search finds a pack: its first position is the number behind its head (pack.py).
local key = KEYS[1]
local SHORT, HEAD, LONG_HEAD = 16, 10, 13

local function first_of(pack)
  local value, scale = 0, 1
  local head = (string.byte(pack, 1) or 0) < SHORT and LONG_HEAD or HEAD
  for at = head + 1, head + 8 do
    local byte = string.byte(pack, at)
    if not byte then
      break
    end
    value = value + byte % 128 * scale
    if byte < 128 then
      return value
    end
    scale = scale * 128
  end
  return 0 -- no pack: whoever decodes it says so
end

-- The index of the last pack that begins at *position* or before, else 0.
local function find(position)
  local low, high = 0, redis.call('LLEN', key) - 1
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if first_of(redis.call('LINDEX', key, middle)) <= position then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

local position, size, packs = tonumber(ARGV[1]), 0, {}
local first = find(position)
while #packs < tonumber(ARGV[2]) and size < tonumber(ARGV[3]) do
  local pack = redis.call('LINDEX', key, first + #packs)
  if not pack then
    break
  end
  packs[#packs + 1] = pack
  if first_of(pack) >= position then -- the one before may end before *position*
    size = size + #pack
  end
end
return {first, packs}
