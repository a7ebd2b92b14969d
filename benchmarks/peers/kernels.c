/* What the GPU kernels of SGLang's allocator do, one loop each on one core.
 * Ids are int64. A page's token ids are page * page_tokens + offset. */
#include <stdint.h>
#include <string.h>

typedef int64_t id;

static id pages_of(id tokens, id page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

/* Token ids of requests growing from before[r] to after[r]: the tail page first, then fresh pages in order. */
void extend_ids(const id *before, const id *after, const id *last, const id *fresh, id *out, id requests,
                id page_tokens) {
  for (id r = 0; r < requests; r++) {
    id position = before[r], tail = pages_of(before[r], page_tokens) * page_tokens, next = last[r] + 1;
    for (; position < after[r] && position < tail; position++) *out++ = next++;
    while (position < after[r]) {
      id base = *fresh++ * page_tokens, count = after[r] - position;
      if (count > page_tokens) count = page_tokens;
      for (id offset = 0; offset < count; offset++) *out++ = base + offset;
      position += count;
    }
  }
}

/* One more token each: the next id of the tail page, or the first of a fresh page. */
void decode_ids(const id *after, const id *last, const id *fresh, id *out, id requests, id page_tokens) {
  for (id r = 0; r < requests; r++)
    out[r] = (after[r] - 1) % page_tokens ? last[r] + 1 : *fresh++ * page_tokens;
}

void bind_range(const id *virtuals, id *to_physical, id *to_virtual, id *out, id count, id first) {
  for (id i = 0; i < count; i++) {
    out[i] = first + i;
    to_physical[virtuals[i]] = first + i;
    to_virtual[first + i] = virtuals[i];
  }
}

void bind_pages(const id *virtuals, const id *physicals, id *to_physical, id *to_virtual, id count) {
  for (id i = 0; i < count; i++) {
    to_physical[virtuals[i]] = physicals[i];
    to_virtual[physicals[i]] = virtuals[i];
  }
}

void unbind_pages(const id *virtuals, id *to_physical, id *to_virtual, id *out, id count) {
  for (id i = 0; i < count; i++) {
    out[i] = to_physical[virtuals[i]];
    to_physical[virtuals[i]] = -1;
    to_virtual[out[i]] = -1;
  }
}

/* Physical token ids; 0, the sink, for what is unbound, negative or out of range, and beyond `count` up to `width`. */
#define TRANSLATE(NAME, TYPE)                                                                                   \
  void NAME(const TYPE *ids, const id *to_physical, id *out, id count, id width, id page_count, id page_tokens) { \
    int shift = 0;                                                                                              \
    while (((id)1 << shift) < page_tokens) shift++;                                                             \
    int is_power = ((id)1 << shift) == page_tokens;                                                             \
    for (id i = 0; i < count; i++) {                                                                            \
      id token = ids[i], page = is_power ? token >> shift : token / page_tokens, found = 0;                     \
      if (token >= 0 && page < page_count) found = to_physical[page] * page_tokens + (token - page * page_tokens); \
      out[i] = found < 0 ? 0 : found;                                                                           \
    }                                                                                                           \
    if (width > count) memset(out + count, 0, (size_t)(width - count) * sizeof(id));                            \
  }

TRANSLATE(translate_wide, int64_t)
TRANSLATE(translate_narrow, int32_t)

void clear_pages(uint8_t *arena, const id *pages, id count, id page_bytes) {
  for (id i = 0; i < count; i++) memset(arena + pages[i] * page_bytes, 0, (size_t)page_bytes);
}

void move_pages(uint8_t *arena, const id *targets, const id *sources, id count, id target_stride, id source_stride,
                id page_bytes) {
  for (id i = 0; i < count; i++)
    memcpy(arena + targets[i * target_stride] * page_bytes, arena + sources[i * source_stride] * page_bytes,
           (size_t)page_bytes);
}
