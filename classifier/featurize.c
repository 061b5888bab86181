/* The loop over a text's bytes that classifier/features.py does with numpy, and the look-ups of classifier/tables.py: the same numbers, in a
   single pass.

   Tables come from there, so nothing is written down twice; classifier/compiled.py calls it. It allocates nothing, and knows
   nothing of Python. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* SHA-256 of this file, by which a library is known that an earlier version left behind. */
#ifndef FEATURIZE_SOURCE
#define FEATURIZE_SOURCE ""
#endif
const char weighbridge_source[65] = FEATURIZE_SOURCE;

enum { MOST_BYTES = 37 * 64, CUE_GROUPS = 5, BUCKET_BITS = 17, BLOCK_BYTES = 64, IDEOGRAPH_BYTES = 3, MARK_BYTES = 5, LONG_CODE = 12, PLACE_SHIFT = 25 };
/* More than there can be terms, which are words and pairs of them. */
enum { PLACE_BITS = 13, MOST_TERMS = 1 << PLACE_BITS };
static const uint32_t NOTHING = 0xFFFFFFFF;

/* What kind of byte each byte is; the order is that of classifier/features.py. */
enum { LOWER, UPPER, DIGIT, UNDERSCORE, LEAD, REST, SPACE, NEWLINE, MATH, BRACKET, BACKSLASH, DOLLAR, QUESTION, COMMA, STOP, OTHER, KINDS };

struct asking;

struct tables {
    const uint64_t *value;     /* by byte: a number for each byte of a word, 0 for every other byte */
    const uint8_t *ideograph;  /* by byte: whether a character that is a word of its own begins with it */
    const uint8_t *cue;        /* by 16 bits of a word's hash: its cue group, 0 for none */
    const uint8_t *is_cue;     /* the same as bits, for few words are cues and few bytes stay in the cache */
    const double *log_more;    /* by count, of a text's bytes at most: the logarithm of one more, which a term adds to the sketch, too */
    const float *sublinear;    /* by count: what a term counts in the graph */
    const uint64_t *power;     /* of the base, of 0 to 64 */
    const uint64_t *inverse;   /* the same of its inverse */
    const uint8_t *tally;      /* by byte: 16 numbers, 1 in the place of its kind */
    const uint8_t *marks;      /* signs beyond ASCII: their number of bytes, which are 3 at most and filled up, and what each is read as */
    const uint8_t *mark_at;    /* by byte: the place of the first sign that begins with it, or how many there are */
    const struct asking *asking; /* how what is asked is told from what stands around it */
    uint64_t pair, finish, placing;
    int32_t word_bits, head_words, tail_words, head_bytes, tail_bytes, sketch, searched, marks_known, long_quote, long_sentence;
};

/* How what is asked is told from what stands around it; see classifier/asking. */
struct asking {
    const int8_t *weights, *system_weights; /* by bucket and class, for messages and for system messages; behind all buckets what every score begins with */
    /* Hashes in slots, 0 for none, and what each stands for: a label's rank, a tag's, and how a word speaks of what stands beside it. */
    const uint32_t *label_keys, *tag_keys, *word_keys, *last_keys;
    const int8_t *label_values, *tag_values, *word_values, *last_values;
    const uint8_t *lookalike;  /* by character from the first of Greek to the last of Cyrillic: the Latin letter that it looks like, or 0 */
    const uint8_t *alike;      /* by byte: how it is hashed within a word, 0 where it is of none */
    const uint64_t *common;    /* stems that tell nothing, as bits */
    const uint8_t *near;       /* sequences of bytes, each behind its length, that speak of what stands beside; a length of 0 ends them */
    const uint8_t *inputs;     /* likewise those by which a system message speaks of what the user sends */
    const uint8_t *fill;       /* likewise what fills a label's place in a template */
    int32_t label_mask, tag_mask, word_mask, last_mask, weight_bits, scored, long_system, margin, system_margin, surely_beside, less, compared, a_shared_word, long_material, pasted, signed_units, signature, fewest_telling, sure, told, least_task, sure_task, task_share, least_share;
};

/* What a request says beside its text. */
struct request {
    int32_t turns, tools, images, json_mode, system_chars, history_chars;
};

/* Where what is found stands, in numbers of 32 bits. */
enum { FACTS_AT = 5, SKETCH_AT = 34 };

static uint64_t mixed(uint64_t hash, uint64_t finish) { return (hash ^ (hash >> 31)) * finish; }

static double log_more(int32_t count) { return log1p((double)(count > 0 ? count : 0)); }

/* Eight bytes that begin at `text`. */
static uint64_t eight_of(const uint8_t *text) {
    uint64_t found;
    memcpy(&found, text, sizeof found);
    return found;
}

enum { EIGHT = sizeof(uint64_t), SIXTEEN = 16 };
typedef uint8_t sixteen __attribute__((vector_size(SIXTEEN), aligned(1)));
#define EACH(byte) (0x0101010101010101u * (uint64_t)(byte))

/* For each of eight bytes below 0x80 its highest bit, where the byte lies from `first` to `last`. */
static uint64_t between(uint64_t eight, uint8_t first, uint8_t last) {
    return (eight + EACH(0x80 - first)) & ~(eight + EACH(0x7F - last)) & EACH(0x80);
}

/* Which of a block's bytes are of a word, as bits; `beyond` is not 0 where there are bytes beyond ASCII. */
static uint64_t word_bits(const uint8_t *block, uint64_t *beyond) {
    uint64_t bits = 0;
    sixteen all = {0};
    for (int32_t at = 0; at < BLOCK_BYTES; at += SIXTEEN) {
        sixteen text = *(const sixteen *)(block + at);
        sixteen word = (sixteen)(((text | 0x20) - 'a' < 26) | (text - '0' < 10) | (text == '_') | (text > 0x7F));
        all |= text;
        /* The product has each byte's bit in its highest byte, in their order. */
        for (int32_t half = 0; half < SIXTEEN; half += EIGHT)
            bits |= (eight_of((const uint8_t *)&word + half) & EACH(1)) * 0x0102040810204080u >> 56 << (at + half);
    }
    *beyond = (eight_of((const uint8_t *)&all) | eight_of((const uint8_t *)&all + EIGHT)) & EACH(0x80);
    return bits;
}

/* Where characters begin that are words of their own, as bits. */
static uint64_t ideograph_bits(const struct tables *t, const uint8_t *block) {
    uint64_t bits = 0;
    for (int32_t at = 0; at < BLOCK_BYTES; at++) bits |= (uint64_t)t->ideograph[block[at]] << at;
    return bits;
}

/* Finds the words of a text; returns their number. A hash is a polynomial over the word's bytes: what the sum over a block's bytes grows by
   from where the word begins to where the next one does, brought back to the word's first byte. For a word that goes on in the next
   block both are brought to where that one begins. Nothing is decided by a byte, for the processor cannot foretell where words end.
   There is room for one hash more on either side. `any_alone` is not 0 where there are words of one character. */
static int32_t words_in(const struct tables *t, const uint8_t *text, int32_t size, uint64_t *hashes, int32_t *starts, uint64_t *any_alone) {
    const uint64_t *value = t->value, *power = t->power, *inverse = t->inverse;
    int32_t words = 0;
    uint64_t from = 0, back = 0, word_before = 0, alone_before = 0, before[BLOCK_BYTES], beyond;
    uint8_t last[BLOCK_BYTES] = {0};
    *any_alone = 0;
    for (int32_t begin = 0; begin < size; begin += BLOCK_BYTES) {
        const uint8_t *block = text + begin;
        if (size - begin < BLOCK_BYTES) block = memcpy(last, block, (size_t)(size - begin));
        uint64_t within = 0;
        for (int32_t at = 0; at < BLOCK_BYTES; at += EIGHT) {
            uint64_t eight = eight_of(block + at);
#pragma GCC unroll 8
            for (int32_t each = 0; each < EIGHT; each++) {
                before[at + each] = within;
                within += value[eight >> 8 * each & 0xFF] * power[at + each];
            }
        }
        uint64_t word = word_bits(block, &beyond), alone = beyond ? ideograph_bits(t, block) : 0;
        uint64_t begins = word & (~(word << 1 | word_before >> 63) | alone | alone << IDEOGRAPH_BYTES | alone_before >> (64 - IDEOGRAPH_BYTES));
        for (; begins; begins &= begins - 1) {
            int32_t at = __builtin_ctzll(begins);
            hashes[words - 1] = (before[at] - from) * back;
            from = before[at];
            back = inverse[at];
            starts[words++] = begin + at;
        }
        from = (from - within) * inverse[BLOCK_BYTES];
        back *= power[BLOCK_BYTES];
        word_before = word;
        alone_before = alone;
        *any_alone |= alone;
    }
    hashes[words - 1] = (0 - from) * back;
    hashes[words] = 0;
    return words;
}

/* Which bucket numbers there are, in the order in which they come, and how often each is there. A table finds what was there before:
   of each number its place in that order. Whether a number is new decides nothing, for the processor cannot foretell it; it
   foretells that hardly ever another number has a number's slot, of which there are so many. */
static int32_t counted(const uint32_t *buckets, int32_t size, int32_t *distinct, int32_t *counts) {
    uint32_t table[4 * MOST_TERMS], mask = 15;
    int32_t found = 0;
    while (mask < 4 * (uint32_t)size) mask = 2 * mask + 1;
    memset(table, 0xFF, (mask + 1) * sizeof *table);
    memset(counts, 0, (size_t)size * sizeof *counts);
    for (int32_t at = 0; at < size; at++) {
        uint32_t bucket = buckets[at], slot = bucket, is_new, known;
        for (;; slot++) {
            slot &= mask;
            is_new = table[slot] == NOTHING;
            known = is_new ? bucket << PLACE_BITS | (uint32_t)found : table[slot];
            if (known >> PLACE_BITS == bucket) break;
        }
        table[slot] = known;
        distinct[found] = (int32_t)bucket;
        counts[known & (MOST_TERMS - 1)]++;
        found += (int32_t)is_new;
    }
    return found;
}

/* The number of line ends; lines that begin like a choice ("A." or "A)"), and as a list's ("- ", "* ", "1. ", "2. "). */
static int32_t line_starts(const uint8_t *text, int32_t size, int32_t *choices, int32_t *items) {
    const uint8_t *at = text, *end = text + size;
    int32_t line_ends = 0;
    *choices = *items = 0;
    while ((at = memchr(at, '\n', (size_t)(end - at)))) {
        int64_t left = end - ++at;
        line_ends++;
        if (left >= 2 && at[0] >= 'A' && at[0] <= 'J' && (at[1] == '.' || at[1] == ')')) ++*choices;
        else if (left >= 2 && (at[0] == '-' || at[0] == '*') && at[1] == ' ') ++*items;
        else if (left >= 3 && (at[0] == '1' || at[0] == '2') && at[1] == '.' && at[2] == ' ') ++*items;
    }
    return line_ends;
}

static int fenced(const uint8_t *text, int32_t size) {
    const uint8_t *at = text, *end = text + size;
    while ((at = memchr(at, '`', (size_t)(end - at)))) {
        if (end - at >= 3 && at[1] == '`' && at[2] == '`') return 1;
        at++;
    }
    return 0;
}

/* Whether bytes at `at` part a number from its unit: a blank, a hyphen, or a space that does not break; their number. */
static int32_t parts(const uint8_t *at, int64_t left) {
    if (left >= 1 && (*at == ' ' || *at == '-' || (*at >= '\t' && *at <= '\r'))) return 1;
    if (left >= 2 && at[0] == 0xC2 && at[1] == 0xA0) return 2;
    return left >= 3 && at[0] == 0xE2 && at[1] == 0x80 && at[2] == 0xAF ? 3 : 0;
}

/* More than there are units of a length, from 1 on. */
enum { UNITS = 8 };

/* The first length that a text asks for, as in "300 words" or "a 5-line answer": the number, and which unit from 1 on. */
static void asked(const uint8_t *text, int32_t size, int32_t *number, int32_t *unit) {
    static const char *const units[] = {"word", "sentence", "paragraph", "line", "page"};
    const uint8_t *end = text + size;
    *number = *unit = 0;
    for (const uint8_t *at = text; at < end; at++) {
        while (end - at >= EIGHT && !between(eight_of(at) & EACH(0x7F), '0', '9')) at += EIGHT;
        if (at == end) return;
        if ((uint8_t)(*at - '0') >= 10) continue;
        const uint8_t *first = at;
        while (at + 1 < end && (uint8_t)(at[1] - '0') < 10) at++;
        const uint8_t *next = at + 1;
        int32_t blanks = 0, length;
        while (blanks < 4 && (length = parts(next, end - next))) next += length, blanks++;
        if (blanks < 1 || blanks > 3) continue;
        for (int32_t each = 0; each < 5; each++) {
            const uint8_t *letter = next;
            const char *name = units[each];
            while (*name && letter < end && (*letter | 32) == *name) letter++, name++;
            if (*name) continue;
            if (letter < end && (*letter | 32) == 's') letter++;
            if (letter < end && (*letter == '_' || (uint8_t)(*letter - '0') < 10 || (uint8_t)((*letter | 32) - 'a') < 26)) continue;
            *unit = each + 1;
            for (first = at - first > 4 ? at - 4 : first; first <= at; first++) *number = *number * 10 + (*first - '0');
            return;
        }
    }
}

/* Sixteen counters of a byte each. */
enum { MOST_COUNTED = 248 };
typedef uint8_t counters __attribute__((vector_size(16), aligned(1)));

/* How many bytes are of each kind. All counters are added to at once, and read before one can be full. */
static void tallied(const struct tables *t, const uint8_t *text, int32_t size, int32_t *kinds) {
    const counters *tally = (const counters *)t->tally;
    for (const uint8_t *at = text, *end = text + size; at < end;) {
        const uint8_t *full = end - at < MOST_COUNTED ? end : at + MOST_COUNTED;
        counters counts = {0};
        for (; full - at >= EIGHT; at += EIGHT) {
            uint64_t eight = eight_of(at);
#pragma GCC unroll 8
            for (int32_t each = 0; each < EIGHT; each++) counts += tally[eight >> 8 * each & 0xFF];
        }
        for (; at < full; at++) counts += tally[*at];
        for (int32_t kind = 0; kind < KINDS; kind++) kinds[kind] += counts[kind];
    }
}

/* What is counted in a text, but for its size and lines: the same whatever blanks and line ends stand between its words. */
struct content {
    int32_t words, numbers, cues[256], kinds[KINDS];
};

static void facts(const struct tables *t, const struct request *request, const uint8_t *text, int32_t size, const struct content *content, float *out) {
    const int32_t *kinds = content->kinds;
    int32_t choices, items, words = content->words, line_ends = line_starts(text, size, &choices, &items);
    double whole = size > 1 ? size : 1, each = (double)size / (words > 1 ? words : 1);
    int32_t beyond_ascii = kinds[LEAD] + kinds[REST];
    int32_t letters = kinds[LOWER] + kinds[UPPER];
    *out++ = (float)t->log_more[size];
    *out++ = (float)t->log_more[words];
    *out++ = (float)(each < 16.0 ? each : 16.0);
    *out++ = (float)(kinds[DIGIT] / whole);
    *out++ = (float)(kinds[UPPER] / (double)(letters > 1 ? letters : 1));
    *out++ = (float)(kinds[MATH] / whole);
    *out++ = (float)(kinds[BRACKET] / whole);
    *out++ = (float)(kinds[BACKSLASH] / whole);
    *out++ = (float)(kinds[DOLLAR] / whole);
    *out++ = (float)(beyond_ascii / whole);
    *out++ = (float)t->log_more[line_ends];
    *out++ = (float)t->log_more[kinds[QUESTION]];
    *out++ = (float)t->log_more[content->numbers];
    *out++ = (float)t->log_more[choices];
    *out++ = (float)t->log_more[kinds[COMMA]];
    *out++ = (float)t->log_more[kinds[STOP]];
    *out++ = (float)t->log_more[items];
    *out++ = (float)fenced(text, size);
    for (int32_t group = 1; group <= CUE_GROUPS; group++) *out++ = (float)t->log_more[content->cues[group]];
    *out++ = (float)log_more(request->turns > 1 ? request->turns - 1 : 0);
    *out++ = (float)log_more(request->tools);
    *out++ = (float)log_more(request->images);
    *out++ = (float)(request->json_mode != 0);
    *out++ = (float)log_more(request->system_chars);
    *out++ = (float)log_more(request->history_chars);
}

/* Each bucket adds its weight to a place, or takes it away; then all is of length 1. The lowest bit of the place is the sign. */
static void sketched(const struct tables *t, const int32_t *buckets, const int32_t *counts, int32_t distinct, float *out) {
    double both[1 << (32 - PLACE_SHIFT)] = {0}, square = 0;
    for (int32_t at = 0; at < distinct; at++) both[(uint32_t)buckets[at] * (uint32_t)t->placing >> PLACE_SHIFT] += t->log_more[counts[at]];
    for (int32_t at = 0; at < t->sketch; at++) {
        both[at] = both[2 * at] - both[2 * at + 1];
        square += both[at] * both[at];
    }
    double length = sqrt(square);
    for (int32_t at = 0; at < t->sketch; at++) out[at] = (float)(length > 0 ? both[at] / length : both[at]);
}

/* All of a text's features, as below, that hang on its words alone, and its content. */
static void content_of(const struct tables *t, const uint8_t *text, int32_t size, int32_t *out, struct content *content) {
    static const int32_t bucket_shift = 64 - BUCKET_BITS;
    uint64_t room[MOST_BYTES + 2], *hashes = room + 1, joined[MOST_BYTES], any_alone;
    uint32_t all_terms[2 * MOST_BYTES];
    int32_t starts[MOST_BYTES], pairs = 0;
    int32_t *meanings = out + SKETCH_AT + t->sketch, *buckets = meanings + t->head_words + t->tail_words;
    int32_t *counts = buckets + 2 * size;
    float *sublinear = (float *)(counts + 2 * size);
    int32_t words = words_in(t, text, size, hashes, starts, &any_alone);
    int32_t terms = words ? 2 * words - 1 : 0;
    memset(content, 0, sizeof *content);
    content->words = words;
    tallied(t, text, size, content->kinds);
    for (int32_t word = 0; any_alone && word + 1 < words; word++)
        if (starts[word + 1] - starts[word] == IDEOGRAPH_BYTES && t->ideograph[text[starts[word]]] && t->ideograph[text[starts[word + 1]]])
            joined[pairs++] = mixed(hashes[word] * t->pair + hashes[word + 1], t->finish);
    for (int32_t word = 0; word < words; word++) {
        /* The last word has no pair; behind the terms there is room for it. */
        all_terms[words + word] = (uint32_t)(mixed(hashes[word] * t->pair + hashes[word + 1], t->finish) >> bucket_shift);
        hashes[word] = mixed(hashes[word], t->finish);
        all_terms[word] = (uint32_t)(hashes[word] >> bucket_shift);
        uint32_t cue = (uint32_t)(hashes[word] >> 48);
        if (t->is_cue[cue >> 3] >> (cue & 7) & 1) content->cues[t->cue[cue]]++;
        content->numbers += (uint8_t)(text[starts[word]] - '0') < 10;
    }
    /* The meaning is looked up of words, then of pairs of ideographs: the first of them all, and the last. */
    int32_t all = words + pairs, most = t->head_words + t->tail_words;
    int32_t meant = all < most ? all : most;
    for (int32_t at = 0; at < meant; at++) {
        int32_t from = all > most && at >= t->head_words ? all - most + at : at;
        meanings[at] = (int32_t)((from < words ? hashes[from] : joined[from - words]) >> (64 - t->word_bits));
    }
    out[0] = counted(all_terms, terms, buckets, counts);
    out[1] = terms;
    out[2] = meant;
    for (int32_t at = 0; at < out[0]; at++) sublinear[at] = t->sublinear[counts[at]];
}

/* What is wanted of a whole text alone: the length asked for, and the sketch. */
static void whole_of(const struct tables *t, const uint8_t *text, int32_t size, int32_t *out) {
    const int32_t *buckets = out + SKETCH_AT + t->sketch + t->head_words + t->tail_words;
    asked(text, size < t->searched ? size : t->searched, out + 3, out + 4);
    sketched(t, buckets, buckets + 2 * size, out[0], (float *)(out + SKETCH_AT));
}

/* The features of one text: the numbers of distinct buckets, of terms, and of meanings; the length asked for; 29 facts and the sketch, as floats; and
   with room for head_words + tail_words, 2 * size, 2 * size and 2 * size numbers the meanings, the buckets in no order, their counts,
   and what these count as floats. Returns 0, or -1 for a text that is longer than a text that is read can be. */
int32_t weighbridge_features(const struct tables *t, const uint8_t *text, int32_t size, int32_t *out,
                             int32_t turns, int32_t tools, int32_t images, int32_t json_mode, int32_t system_chars, int32_t history_chars) {
    struct request request = {turns, tools, images, json_mode, system_chars, history_chars};
    struct content content;
    if (size < 0 || size > MOST_BYTES) return -1;
    content_of(t, text, size, out, &content);
    whole_of(t, text, size, out);
    facts(t, &request, text, size, &content, (float *)(out + FACTS_AT));
    return 0;
}

/* The words of a text by meaning, `most` at most; returns their number, or -1 as above. */
int32_t weighbridge_words(const struct tables *t, const uint8_t *text, int32_t size, int32_t most, int32_t *meanings) {
    uint64_t room[MOST_BYTES + 2], *hashes = room + 1, any_alone;
    int32_t starts[MOST_BYTES];
    if (size < 0 || size > MOST_BYTES) return -1;
    int32_t words = words_in(t, text, size, hashes, starts, &any_alone);
    if (words > most) words = most;
    for (int32_t word = 0; word < words; word++)
        meanings[word] = (int32_t)(mixed(hashes[word], t->finish) >> (64 - t->word_bits));
    return words;
}

/* The sign of those beyond ASCII that a text begins with, or null: it has two bytes, or three. */
static const uint8_t *mark_at(const struct tables *t, const uint8_t *text, int32_t size) {
    const uint8_t *mark = t->marks + MARK_BYTES * t->mark_at[*text], *end = t->marks + MARK_BYTES * t->marks_known;
    for (; mark < end && mark[1] == text[0]; mark += MARK_BYTES)
        if (size >= mark[0] && mark[2] == text[1] && (mark[0] == 2 || mark[3] == text[2])) return mark;
    return 0;
}

static int is_latin(uint8_t byte) { return (uint8_t)((byte | 32) - 'a') < 26; }

enum { FIRST_OTHER = 0x370, LAST_OTHER = 0x52F, NO_OTHER = -1 };

/* The Latin letter that a Greek or Cyrillic one looks like, 0 where it looks like none, or NO_OTHER for another character. */
static int looks_like(const struct asking *a, const uint8_t *text, int32_t at, int32_t size) {
    if (text[at] < 0xCD || text[at] > 0xD4 || at + 1 == size || (text[at + 1] & 0xC0) != 0x80) return NO_OTHER;
    int32_t code = (text[at] & 0x1F) << 6 | (text[at + 1] & 0x3F);
    return code < FIRST_OTHER || code > LAST_OTHER ? NO_OTHER : a->lookalike[code - FIRST_OTHER];
}

/* Which there are in a part: 1 for Latin letters, 2 for what looks like them, 4 for other Greek and Cyrillic letters. */
static int letters_in(const struct asking *a, const uint8_t *text, int32_t at, int32_t size) {
    int found = 0, like;
    for (; at < size; at++) {
        found |= is_latin(text[at]);
        if (text[at] < 0x80 || (like = looks_like(a, text, at, size)) == NO_OTHER) continue;
        found |= like ? 2 : 4;
        at++;
    }
    return found;
}

/* Latin letters in place of such as only look like them, where no other letter of the word, or of the whole text, is of their alphabet; in place. */
static int32_t without_lookalikes(const struct asking *a, uint8_t *text, int32_t size) {
    int32_t kept = 0, all = letters_in(a, text, 0, size);
    if ((all & 3) != 3) return size;
    for (int32_t at = 0; at < size;) {
        int32_t end = at;
        while (end < size && (text[end] >= 0x80 || is_latin(text[end]))) end++;
        int found = end > at ? letters_in(a, text, at, end) : 0, folds = (found & 2) && (!(all & 4) || (found & 5) == 1);
        for (; at < end; at++) {
            int like = folds && text[at] >= 0x80 ? looks_like(a, text, at, end) : NO_OTHER;
            if (like > 0) at++;
            text[kept++] = like > 0 ? (uint8_t)like : text[at];
        }
        if (at < size) text[kept++] = text[at++];
    }
    return kept;
}

/* Signs beyond ASCII become the plain ones that they are read as, in place; returns the number of bytes that are left. */
static int32_t with_plain_marks(const struct tables *t, uint8_t *text, int32_t size) {
    int32_t kept = 0, at = 0, others = 0;
    while (at < size) {
        for (; size - at >= EIGHT && !(eight_of(text + at) & EACH(0x80)); at += EIGHT, kept += EIGHT) memmove(text + kept, text + at, EIGHT);
        if (at == size) break;
        if (text[at] < 0x80) {
            text[kept++] = text[at++];
            continue;
        }
        const uint8_t *mark = mark_at(t, text + at, size - at);
        if (mark) {
            /* What nobody sees is read as nothing. */
            text[kept] = mark[MARK_BYTES - 1];
            kept += text[kept] != 0;
            at += mark[0];
        } else {
            others |= text[at] >= 0xCD && text[at] <= 0xD4;
            text[kept++] = text[at++];
        }
    }
    return others ? without_lookalikes(t->asking, text, kept) : kept;
}

static int is_blank(uint8_t byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

static int in_word(uint8_t byte) {
    return byte >= 0x80 || (uint8_t)((byte | 32) - 'a') < 26 || (uint8_t)(byte - '0') < 10 || byte == '_';
}

/* The next place of a byte, or the end. */
static int32_t next_of(const uint8_t *text, int32_t at, int32_t size, uint8_t byte) {
    const uint8_t *found = at < size ? memchr(text + at, byte, (size_t)(size - at)) : 0;
    return found ? (int32_t)(found - text) : size;
}

/* The next three backticks, or the end. */
static int32_t next_fence(const uint8_t *text, int32_t at, int32_t size) {
    for (at = next_of(text, at, size, '`'); at < size; at = next_of(text, at + 1, size, '`'))
        if (size - at >= 3 && text[at + 1] == '`' && text[at + 2] == '`') return at;
    return size;
}

/* A part of a text is moved to where the part before it ends; returns where it ends now. */
static int32_t moved(uint8_t *text, int32_t kept, int32_t begin, int32_t end) {
    memmove(text + kept, text + begin, (size_t)(end - begin));
    return kept + end - begin;
}

/* Each of these leaves material out of a text, in place, and returns the number of bytes that are left. */
static int32_t without_fences(uint8_t *text, int32_t size) {
    int32_t at = next_fence(text, 0, size), kept = at;
    while (at < size) {
        int32_t close = next_fence(text, at + 3, size), on = close < size ? close + 3 : size;
        text[kept++] = '\n';
        at = next_fence(text, on, size);
        kept = moved(text, kept, on, at);
    }
    return kept;
}

static int32_t without_marked(uint8_t *text, int32_t size, uint8_t mark, int32_t least, int may_stay_open) {
    int32_t at = next_of(text, 0, size, mark), kept = at;
    while (at < size) {
        int32_t close = next_of(text, at + 1, size, mark);
        if ((close < size || may_stay_open) && close - at - 1 >= least) {
            int32_t on = close < size ? close + 1 : size;
            text[kept++] = ' ';
            at = next_of(text, on, size, mark);
            kept = moved(text, kept, on, at);
        } else {
            kept = moved(text, kept, at, close);
            at = close;
        }
    }
    return kept;
}

/* Between apostrophes, on one line; where one follows a word or a word follows, it is no quotation mark. */
static int32_t without_single_quoted(uint8_t *text, int32_t size, int32_t least) {
    int32_t at = next_of(text, 0, size, '\''), kept = at;
    while (at < size) {
        int32_t close = next_of(text, at + 1, size, '\'');
        if (close < size && close - at - 1 >= least && next_of(text, at + 1, close, '\n') == close &&
            !(close + 1 < size && in_word(text[close + 1]))) {
            int stays = at && in_word(text[at - 1]);
            int32_t after = next_of(text, close + 1, size, '\'');
            if (!stays) text[kept++] = ' ';
            kept = moved(text, kept, stays ? at : close + 1, after);
            at = after;
        } else {
            kept = moved(text, kept, at, close);
            at = close;
        }
    }
    return kept;
}

/* Of several lines the first and the last, without the blanks around them; and how many lines there were. */
static int32_t first_and_last(uint8_t *text, int32_t size, int32_t *all_lines) {
    int32_t kept = 0, last_begin = 0, last_end = 0, lines = 0;
    for (int32_t at = 0; at < size;) {
        int32_t begin = at, end = next_of(text, at, size, '\n');
        at = end + 1;
        while (begin < end && is_blank(text[begin])) begin++;
        while (begin < end && is_blank(text[end - 1])) end--;
        if (begin == end) continue;
        if (lines++) last_begin = begin, last_end = end;
        else kept = moved(text, 0, begin, end);
    }
    *all_lines = lines;
    if (lines < 2) return kept;
    text[kept++] = '\n';
    return moved(text, kept, last_begin, last_end);
}

/* Whether there are two words, or characters beyond ASCII of twelve bytes. */
static int has_enough(const uint8_t *text, int32_t size) {
    int32_t beyond = 0, words = 0, inside = 0;
    for (int32_t at = 0; at < size; at++) {
        beyond = text[at] >= 0x80 ? beyond + 1 : 0;
        words += in_word(text[at]) && !inside;
        inside = in_word(text[at]);
        if (beyond == 12 || words == 2) return 1;
    }
    return 0;
}

static int ends_sentence(const uint8_t *text, int32_t at, int32_t size) {
    if (text[at] == '\n') return 1;
    if (text[at] != '.' && text[at] != '!' && text[at] != '?') return 0;
    return at + 1 == size || is_blank(text[at + 1]) || text[at + 1] >= 0x80;
}

/* What a text asks, into `ask`, where there is room for the text; returns its size. `same_words` says that nothing but blanks and line ends is
   left out, if anything: whatever else is left out is longer than what is put in its place. With `edges` of several lines the first and the last. */
static int32_t ask_in(const struct tables *t, const uint8_t *text, int32_t size, uint8_t *ask, int32_t *same_words, int edges) {
    int32_t lines = 0;
    memcpy(ask, text, (size_t)size);
    int32_t kept = without_marked(ask, without_fences(ask, size), '`', LONG_CODE, 0);
    kept = without_single_quoted(ask, without_marked(ask, kept, '"', t->long_quote, 1), t->long_quote);
    *same_words = kept == size;
    if (edges && next_of(ask, 0, kept, '\n') < kept) kept = first_and_last(ask, kept, &lines);
    *same_words &= lines <= 2;
    if (has_enough(ask, kept)) return kept;
    memcpy(ask, text, (size_t)size);
    *same_words = 1;
    return size;
}

/* The question of what is asked: where it begins, and its size. */
static int32_t question_in(const struct tables *t, const uint8_t *ask, int32_t size, int32_t *question_size) {
    int32_t mark = -1, begin, any = 0;
    for (int32_t at = next_of(ask, 0, size, '?'); at < size; at = next_of(ask, at + 1, size, '?'))
        if (ends_sentence(ask, at, size)) mark = at;
    if (mark >= 0) {
        int32_t first = mark > t->long_sentence ? mark - t->long_sentence : 0;
        for (begin = mark; begin > first && !ends_sentence(ask, begin - 1, mark + 1); begin--) {}
        *question_size = mark + 1 - begin;
        return begin;
    }
    *question_size = size;
    for (int32_t at = 0; at < size; at++) {
        any |= !is_blank(ask[at]);
        if (any && ends_sentence(ask, at, size)) {
            *question_size = at + 1;
            break;
        }
    }
    return 0;
}

/* What classifier/asking does, in its order and to the byte. */

enum { REQUEST, MATERIAL, OF_RULES, BESIDE, CLASSES };
enum { MOST_UNITS = 1024, MOST_LABELS = 256, MOST_SEARCHED = 2 * 16384 + 1, MOST_SYSTEM = 3 * 4096, LONGEST_LABEL = 40, DECORATED = 10 };
enum { LABEL_NONE = -128, LABEL_ANSWER = -2, LABEL_RULES = -1, LABEL_MATERIAL = 0, LABEL_HARNESS = -3, LABEL_WEAKEST = 1, LABEL_TASK = 2 };
enum { FIRST_TOKENS = 20, LAST_TOKENS = 6, UNIT_HEAD = 160, UNIT_TAIL = 64, STEM = 5, STEM_BITS = 14, STEM_WORDS = (1 << STEM_BITS) / 64 };
enum { ALONE = 1, FIRST, SECOND, PAIR, END, OPENS, LENGTH, COUNT, PLACED_AT, DENSE, STEMMED, OPENED };
enum { NEAR = 1, ARTICLE = 2, THING = 4, OWN = 8, INPUT = 16, VERB = 32, ASKING = 64 };
static const uint32_t HASH_OFFSET = 2166136261u, HASH_PRIME = 16777619u, HASH_MIX = 0x2C1B3C6Du;


struct unit { int32_t begin, end, line, block, kind, lead; };
struct label { int32_t begin, value, end, rank; };
struct taken {
    const uint8_t *text;
    int32_t size, units, labels;
    struct unit unit[MOST_UNITS];
    struct label label[MOST_LABELS];
};

static int32_t looked_up(const uint32_t *keys, const int8_t *values, int32_t mask, uint32_t key) {
    for (uint32_t slot = key & (uint32_t)mask; keys[slot]; slot = (slot + 1) & (uint32_t)mask)
        if (keys[slot] == key) return values[slot];
    return LABEL_NONE;
}

static uint8_t lowered(uint8_t byte) { return (uint8_t)(byte - 'A') < 26 ? byte + 32 : byte; }
static int is_lone(uint8_t byte) { return byte >= 0xE3 && byte <= 0xED; }

/* A word, its hash, and the hash of its first STEM bytes, or of all. */
struct token { uint32_t hash, stem; int32_t begin, end; };

/* The next word from `at` on; returns 0 where there is none. */
static inline int next_token(const struct asking *a, const uint8_t *text, int32_t at, int32_t end, struct token *token) {
    const uint8_t *alike = a->alike;
    while (at < end && !alike[text[at]]) at++;
    if (at >= end) return 0;
    int lone = is_lone(text[at]);
    int32_t stop = lone && at + 3 < end ? at + 3 : end, stem = at + STEM < stop ? at + STEM : stop;
    uint32_t hash = HASH_OFFSET;
    token->begin = at;
    for (; at < stem && alike[text[at]] && (lone || !is_lone(text[at])); at++) hash = (hash ^ alike[text[at]]) * HASH_PRIME;
    token->stem = hash;
    if (at == stem)
        for (; at < stop && alike[text[at]] && (lone || !is_lone(text[at])); at++) hash = (hash ^ alike[text[at]]) * HASH_PRIME;
    token->hash = hash;
    token->end = at;
    return 1;
}

static inline uint32_t bucket_of(const struct asking *a, uint32_t salt, uint32_t one, uint32_t other) {
    uint32_t value = (HASH_OFFSET ^ salt) * HASH_PRIME;
    value = (value ^ one) * HASH_PRIME;
    value = (value ^ (one >> 16)) * HASH_PRIME;
    value = (value ^ other) * HASH_PRIME;
    value ^= value >> 15;
    return value * HASH_MIX >> (32 - a->weight_bits);
}

typedef int8_t class_row __attribute__((vector_size(CLASSES), aligned(1)));
typedef int32_t class_sums __attribute__((vector_size(4 * CLASSES)));

static inline void add_mark(const struct asking *a, const int8_t *weights, class_sums *sums, uint32_t salt, uint32_t one, uint32_t other) {
    const int8_t *row = weights + (int64_t)bucket_of(a, salt, one, other) * CLASSES;
    *sums += __builtin_convertvector(*(const class_row *)row, class_sums);
}

/* A label's name as it is looked up: small letters, blanks for underscores, nothing else at its ends. Returns its length. */
static int32_t named(const uint8_t *text, int32_t size, uint8_t *name, int tag) {
    int32_t kept = 0;
    while (size && (*text == ' ' || *text == '_' || *text == '*' || *text == '-')) text++, size--;
    while (size && (text[size - 1] == ' ' || text[size - 1] == '_' || text[size - 1] == '*' || text[size - 1] == '-')) size--;
    for (int32_t at = 0; at < size; at++) {
        if (tag && at && (uint8_t)(text[at - 1] - 'a') < 26 && (uint8_t)(text[at] - 'A') < 26) name[kept++] = ' ';
        name[kept++] = text[at] == '_' || (tag && text[at] == '-') ? ' ' : lowered(text[at]);
    }
    return kept;
}

static uint32_t name_hash(const uint8_t *name, int32_t size) {
    uint32_t hash = HASH_OFFSET;
    for (int32_t at = 0; at < size; at++) hash = (hash ^ name[at]) * HASH_PRIME;
    return hash ? hash : 1;
}

/* The rank of a label or a tag by its name, or by the last word of that. */
static int32_t rank_of(const struct asking *a, const uint32_t *keys, const int8_t *values, int32_t mask, const uint8_t *name, int32_t size) {
    int32_t rank = looked_up(keys, values, mask, name_hash(name, size)), at = size;
    if (rank != LABEL_NONE) return rank;
    while (at && name[at - 1] != ' ') at--;
    if (!at) return LABEL_NONE;
    rank = looked_up(a->last_keys, a->last_values, a->last_mask, name_hash(name + at, size - at));
    return rank;
}

static int in_label(uint8_t byte) { return byte >= 0x80 || (uint8_t)((byte | 32) - 'a') < 26 || byte == '_' || byte == '\'' || byte == ' ' || byte == '-'; }

static int decorates(uint8_t byte) {
    switch (byte) { case ' ': case '\t': case '>': case '*': case '#': case '_': case '[': case '(': case '"': case '{': case ',': return 1; }
    return 0;
}

/* The rank of a label that a line begins with, and where its value begins. */
static int32_t label_at(const struct asking *a, const uint8_t *text, int32_t begin, int32_t end, int32_t *value) {
    uint8_t name[LONGEST_LABEL];
    int32_t at = begin, marked = 0, name_at, rank;
    for (; at < end && at - begin < DECORATED && decorates(text[at]); at++) marked |= text[at] == '*' || text[at] == '#' || text[at] == '[';
    for (name_at = at; at < end && at - name_at < LONGEST_LABEL && in_label(text[at]);) at++;
    /* Most lines have no label, and are known by what follows their first words. */
    if (at < end && !(text[at] == ':' || text[at] == '(' || text[at] == '\t' || text[at] == '*' || text[at] == '#' || text[at] == ']' || text[at] == ')' || text[at] == '"' || text[at] == ' ' || text[at] == '_')) return LABEL_NONE;
    rank = rank_of(a, a->label_keys, a->label_values, a->label_mask, name, named(text + name_at, at - name_at, name, 0));
    if (rank == LABEL_NONE) return rank;
    if (at < end && text[at] == '(') {
        int32_t close = next_of(text, at, end < at + 64 ? end : at + 64, ')');
        if (close < (end < at + 64 ? end : at + 64)) at = close + 1;
    }
    while (at < end && (text[at] == ' ' || text[at] == '\t' || text[at] == '*' || text[at] == '_' || text[at] == '#' || text[at] == ']' || text[at] == ')' || text[at] == '"')) at++;
    *value = at < end && text[at] == ':' ? at + 1 : at;
    return (at < end && text[at] == ':') || (marked && at == end) ? rank : LABEL_NONE;
}

/* The next place of a sequence, or -1. */
static int32_t found_at(const uint8_t *text, int32_t at, int32_t size, const uint8_t *what, int32_t length) {
    for (at = next_of(text, at, size, *what); at + length <= size; at = next_of(text, at + 1, size, *what))
        if (!memcmp(text + at, what, (size_t)length)) return at;
    return -1;
}

/* For a line that begins with a known tag its rank, where its value begins and ends, and where what follows it begins. */
static int32_t tag_at(const struct asking *a, const uint8_t *text, int32_t size, int32_t begin, int32_t end, int32_t *value, int32_t *close, int32_t *after) {
    uint8_t name[2 * LONGEST_LABEL], ending[LONGEST_LABEL + 3] = "</";
    int32_t at = begin + 1, closing = at < end && text[at] == '/', name_at = at += closing, length, rank, mark;
    while (at < end && at - name_at < LONGEST_LABEL && in_label(text[at]) && text[at] != ' ') at++;
    length = at - name_at;
    rank = rank_of(a, a->tag_keys, a->tag_values, a->tag_mask, name, named(text + name_at, length, name, 1));
    /* What stands between tags that nobody knows is material. */
    if (rank == LABEL_NONE || rank == LABEL_ANSWER) rank = LABEL_MATERIAL;
    if (!length || at >= end || (text[at] != '>' && text[at] != ' ' && text[at] != '\t')) return LABEL_NONE;
    mark = next_of(text, at, end, '>');
    if (mark == end) return LABEL_NONE;
    *value = *after = mark + 1;
    *close = 0;
    if (closing) return LABEL_MATERIAL;
    memcpy(ending + 2, text + name_at, (size_t)length);
    ending[length + 2] = '>';
    *close = found_at(text, mark, size, ending, length + 3);
    if (*close < 0) return LABEL_NONE;
    *after = *close + length + 3;
    return rank;
}

static void add_unit(struct taken *t, int32_t begin, int32_t end, int32_t line, int32_t block, int32_t kind, int32_t lead) {
    if (t->units < MOST_UNITS) t->unit[t->units++] = (struct unit){begin, end, line, block, kind, lead};
    else t->unit[MOST_UNITS - 1].end = end;
}

static void add_label(struct taken *t, int32_t begin, int32_t value, int32_t end, int32_t rank) {
    if (t->labels < MOST_LABELS) t->label[t->labels++] = (struct label){begin, value, end, rank};
}

static int is_break(const uint8_t *text, int32_t begin, int32_t end) {
    if (end - begin < 3) return 0;
    for (int32_t at = begin; at < end && at < begin + 200; at++)
        if (!memchr("-=*_~#", text[at], 6)) return 0;
    return 1;
}

static int ends_unit(const uint8_t *text, int32_t at, int32_t end) {
    return (text[at] == '.' || text[at] == '!' || text[at] == '?') && (at + 1 == end || is_blank(text[at + 1]) || text[at + 1] >= 0x80);
}

static void take_apart(const struct asking *a, const uint8_t *text, int32_t size, struct taken *t) {
    int32_t at = 0, line = 0, block = 0, fresh = 1, whole = size <= 2 * a->scored;
    t->text = text;
    t->size = size;
    t->units = t->labels = 0;
    while (at < size) {
        int32_t end = next_of(text, at, size, '\n'), begin = at, stop = end, rank, value, close, after;
        while (begin < stop && is_blank(text[begin])) begin++;
        while (begin < stop && is_blank(text[stop - 1])) stop--;
        at = end + 1;
        line++;
        if (begin == stop || is_break(text, begin, stop)) {
            if (begin < stop && t->labels) add_label(t, begin, stop, 0, LABEL_RULES);
            block += !fresh;
            fresh = 1;
            continue;
        }
        if (text[begin] == '`' && size - begin >= 3 && text[begin + 1] == '`' && text[begin + 2] == '`') {
            close = next_fence(text, begin + 3, size);
            at = stop = close < size ? close + 3 : size;
            add_unit(t, begin, stop, line, block, MATERIAL, -1);
            fresh = 0;
            continue;
        }
        if (text[begin] == '<' && (rank = tag_at(a, text, size, begin, stop, &value, &close, &after)) != LABEL_NONE) {
            if (rank > 0) {
                add_label(t, begin, value, close, rank);
                block += !fresh;
                fresh = 1;
                at = value;
                continue;
            }
            if (close) {
                add_unit(t, begin, after, line, block, rank == LABEL_HARNESS ? BESIDE : MATERIAL, -1);
                at = after;
            }
            block++;
            fresh = 1;
            continue;
        }
        int within = 0, scored = whole || begin < a->scored || begin >= size - a->scored;
        while (begin < stop) {
            rank = t->labels < MOST_LABELS ? label_at(a, text, begin, stop, &value) : LABEL_NONE;
            if (within && rank <= LABEL_WEAKEST && rank > LABEL_ANSWER) rank = LABEL_NONE;
            within = 1;
            if (rank != LABEL_NONE) {
                add_label(t, begin, value, 0, rank);
                block += !fresh;
                fresh = 1;
                for (begin = value; begin < stop && (text[begin] == ' ' || text[begin] == '\t' || text[begin] == '*' || text[begin] == '_');) begin++;
                if (begin == stop) break;
            }
            fresh = 0;
            end = stop;
            for (int32_t each = begin; scored && each < stop; each++)
                if (ends_unit(text, each, stop)) {
                    end = each + 1;
                    break;
                }
            if (scored) add_unit(t, begin, end, line, block, -1, 0);
            else if (t->units && t->unit[t->units - 1].line < 0 && rank == LABEL_NONE) t->unit[t->units - 1].end = end;
            else add_unit(t, begin, end, -1, block, MATERIAL, 0);
            for (begin = end; begin < stop && is_blank(text[begin]);) begin++;
        }
    }
}

/* The class of each unit, by the sum of the weights of its words, their pairs and its form. */
static void score_units(const struct asking *a, struct taken *t, int system) {
    const uint8_t *text = t->text;
    const int8_t *weights = system ? a->system_weights : a->weights;
    int framed = system;
    for (int32_t at = 0; at < t->labels; at++) framed |= t->label[at].rank >= LABEL_MATERIAL;
    for (int32_t at = 0; at < t->units; at++) framed |= t->unit[at].lead < 0 && text[t->unit[at].begin] == '<';
    int32_t most = 0;
    for (int32_t at = 0; at < t->units; at++) {
        struct unit *unit = t->unit + at;
        if (unit->kind >= 0) continue;
        struct token token, tail[LAST_TOKENS];
        int32_t begin = unit->begin, end = unit->end, count = 0, odd = 0, bits = 0, last = 0, kind = 0;
        int32_t head = end < begin + UNIT_HEAD ? end : begin + UNIT_HEAD, new_line = !at || unit[-1].line != unit->line, new_block = !at || unit[-1].block != unit->block;
        uint32_t before = 0, first = 0;
        const int8_t *base = weights + ((int64_t)CLASSES << a->weight_bits);
        class_sums sums = __builtin_convertvector(*(const class_row *)base, class_sums);
        for (int32_t place = begin; count < FIRST_TOKENS && next_token(a, text, place, head, &token); place = token.end, before = token.hash, count++) {
            add_mark(a, weights, &sums, ALONE, token.hash, 0);
            if (token.end - token.begin > STEM) add_mark(a, weights, &sums, STEMMED, token.stem, 0);
            if (count) add_mark(a, weights, &sums, PAIR, before, token.hash);
            if (!count) add_mark(a, weights, &sums, FIRST, first = token.hash, 0);
            if (count == 1) add_mark(a, weights, &sums, SECOND, first, token.hash);
        }
        if (end - begin > UNIT_HEAD) {
            for (int32_t place = end - UNIT_TAIL; next_token(a, text, place, end, &token); place = token.end) tail[last++ % LAST_TOKENS] = token;
            for (int32_t each = last > LAST_TOKENS ? last - LAST_TOKENS : 0; each < last; each++) add_mark(a, weights, &sums, ALONE, tail[each % LAST_TOKENS].hash, 0);
        }
        for (int32_t place = begin; place < head; place++) odd += !a->alike[text[place]] && text[place] != ' ';
        while (end - begin >> bits) bits++;
        uint8_t closing = text[end - 1], opening = text[begin];
        add_mark(a, weights, &sums, END, closing < 0x80 && !in_word(closing) ? closing : 0, 0);
        add_mark(a, weights, &sums, OPENS, opening < 0x80 && !in_word(opening) ? opening : (uint8_t)(opening - 'A') < 26 ? 65 : 0, 0);
        add_mark(a, weights, &sums, LENGTH, (uint32_t)bits, 0);
        add_mark(a, weights, &sums, COUNT, count < 12 ? (uint32_t)count : 12, 0);
        add_mark(a, weights, &sums, PLACED_AT, (uint32_t)(new_line | new_block << 1), 0);
        add_mark(a, weights, &sums, DENSE, (uint32_t)(16 * odd / (head - begin > 1 ? head - begin : 1)), 0);
        /* Whether it begins as a request does, whichever verb it is. */
        int32_t opened = count ? looked_up(a->word_keys, a->word_values, a->word_mask, first) : 0;
        add_mark(a, weights, &sums, OPENED, opened == LABEL_NONE ? 0 : (uint32_t)(opened & (VERB | ASKING)), closing == '?' || closing == ':' ? closing : 0);
        sums[OF_RULES] -= system ? a->system_margin : a->margin;
        sums[BESIDE] -= a->surely_beside;
        for (int32_t each = 1; each < CLASSES; each++)
            if (sums[each] > sums[kind]) kind = each;
        unit->kind = kind;
        if (kind == REQUEST) {
            int32_t other = sums[1] > sums[2] ? sums[1] : sums[2];
            unit->lead = sums[0] - (other > sums[3] ? other : sums[3]);
        } else if (kind == OF_RULES && !framed) {
            int32_t lead = sums[0] - (sums[1] > sums[3] ? sums[1] : sums[3]);
            unit->lead = lead > 0 ? lead : 0;
        }
    }
    for (int32_t at = 0; at < t->units; at++)
        if (t->unit[at].kind == REQUEST && t->unit[at].lead > most) most = t->unit[at].lead;
    for (int32_t at = 0; at < t->units; at++)
        if (t->unit[at].kind == REQUEST && a->less * t->unit[at].lead < most) t->unit[at].kind = MATERIAL;
        else if (t->unit[at].kind == OF_RULES && !framed) t->unit[at].kind = REQUEST;
    /* Short lines at the end that follow what is beside the point are a signature. */
    int32_t begun = t->units, least = t->units > a->signed_units ? t->units - a->signed_units : 0;
    for (int32_t at = t->units - 1; at >= least; at--) {
        const struct unit *unit = t->unit + at;
        if (unit->kind == REQUEST || unit->end - unit->begin > a->signature) break;
        if (unit->kind == BESIDE) begun = at;
    }
    for (; begun < t->units; begun++) t->unit[begun].kind = BESIDE;
    /* What is beside the point stands at the start or at the end: elsewhere it is a part of the message. */
    int32_t inner = 0, outer = t->units;
    while (inner < outer && t->unit[inner].kind == BESIDE) inner++;
    while (outer > inner && t->unit[outer - 1].kind == BESIDE) outer--;
    for (; inner < outer; inner++)
        if (t->unit[inner].kind == BESIDE && !t->unit[inner].lead) t->unit[inner].kind = MATERIAL;
}

static int is_empty(uint8_t byte) { return is_blank(byte) || (byte && strchr("*_#=-`\"'>[]", byte)); }

/* What is left of a part without blanks and marks at its ends; returns its length. */
static int32_t stripped(const uint8_t *text, int32_t *begin, int32_t end) {
    while (*begin < end && is_empty(text[*begin])) ++*begin;
    while (*begin < end && is_empty(text[end - 1])) end--;
    return end - *begin;
}

static int is_value(const struct asking *a, const uint8_t *text, int32_t begin, int32_t end) {
    int32_t size = stripped(text, &begin, end), at;
    if (size <= 1) return 0;
    for (const uint8_t *fill = a->fill; *fill; fill += *fill + 1) {
        for (at = 0; at < *fill && at < size && at < LONGEST_LABEL && lowered(text[begin + at]) == fill[1 + at];) at++;
        if (at == *fill) return 0;
    }
    return 1;
}

/* The value of the strongest label that says what is asked, the last of several; returns its rank, 0 where there is none. */
static int32_t labelled(const struct asking *a, struct taken *t, int32_t *begin, int32_t *end) {
    int32_t best = 0, open_cue;
    if (!t->labels) return 0;
    const struct label *last = t->label + t->labels - 1;
    int32_t cue_at = last->value;
    open_cue = last->rank == LABEL_ANSWER && !stripped(t->text, &cue_at, t->size);
    for (int32_t at = 0; at < t->labels; at++) {
        const struct label *each = t->label + at, *after = each + 1, *stop = t->label + t->labels;
        if (each->rank <= 0 || (each->rank == LABEL_WEAKEST && !open_cue)) continue;
        while (after < stop && each->end && after->begin < each->end) after++;
        int32_t ends = each->end ? each->end : after < stop ? after->begin : t->size;
        if (!is_value(a, t->text, each->value, ends)) continue;
        if (after < stop && after->rank == LABEL_ANSWER && each->rank != LABEL_TASK && !each->end) {
            int32_t answer = after->value;
            int32_t answered = after + 1 < stop ? after[1].begin : t->size;
            if (stripped(t->text, &answer, answered)) {
                for (int32_t unit = 0; unit < t->units; unit++)
                    if (t->unit[unit].begin >= each->value && t->unit[unit].begin < answered && t->unit[unit].kind == REQUEST) t->unit[unit].kind = MATERIAL;
                continue;
            }
        }
        if (each->rank >= best) {
            best = each->rank;
            *begin = each->value;
            *end = ends;
        }
    }
    return best;
}

static int speaks_of(const struct asking *a, const uint8_t *text, int32_t begin, int32_t end, int loosely, int system) {
    struct token token;
    int32_t article = 2, beyond = 0;
    for (int32_t at = begin; next_token(a, text, at, end, &token); at = token.end) {
        int32_t kind = looked_up(a->word_keys, a->word_values, a->word_mask, token.hash);
        article++;
        if (kind == LABEL_NONE) kind = 0;
        if (kind & (NEAR | (article <= 1 + loosely ? THING : 0) | (loosely ? OWN : 0) | (system ? INPUT : 0))) return 1;
        if (kind & ARTICLE) article = 0;
        beyond |= is_lone(text[token.begin]);
    }
    for (const uint8_t *input = a->inputs; system && beyond && *input; input += *input + 1)
        if (found_at(text, begin, end, input + 1, *input) >= 0) return 1;
    if (end > begin && text[end - 1] == ':') return 1;
    for (const uint8_t *near = a->near; beyond && *near; near += *near + 1)
        if (found_at(text, begin, end, near + 1, *near) >= 0) return 1;
    return 0;
}

static void stems_in(const struct asking *a, const uint8_t *text, int32_t begin, int32_t end, uint64_t *bits) {
    struct token token;
    for (int32_t at = begin; next_token(a, text, at, end, &token); at = token.end)
        if (token.end - token.begin >= STEM) {
            uint32_t stem = token.stem * HASH_MIX >> (32 - STEM_BITS);
            bits[stem >> 6] |= (uint64_t)1 << (stem & 63);
        }
}

/* Which units ask, as marks; returns the rank of the label that says so, 0 where it is their score, and counts them. */
static int32_t asking_units(const struct asking *a, struct taken *t, uint8_t *asks, int32_t *count) {
    int32_t begin = 0, end = 0, rank = labelled(a, t, &begin, &end), inside = 0, own = 0, outside = 0;
    memset(asks, 0, MOST_UNITS);
    *count = 0;
    if (rank) {
        int32_t first = -1;
        uint8_t there[MOST_UNITS] = {0};
        for (int32_t at = 0; at < t->units;) {
            int32_t next = at, asked = 0;
            for (; next < t->units && t->unit[next].block == t->unit[at].block; next++) {
                const struct unit *unit = t->unit + next;
                if (unit->begin < begin || unit->begin >= end) continue;
                if (first < 0) first = unit->block;
                asked |= unit->kind == REQUEST || unit->block == first;
            }
            for (; at < next; at++) {
                const struct unit *unit = t->unit + at;
                int lies = unit->begin >= begin && unit->begin < end;
                if (!lies && !at) outside = unit->lead;
                if (!lies || !asked) continue;
                there[at] = 1;
                inside++;
                *count += asks[at] = unit->kind == REQUEST || unit->kind == MATERIAL;
                if (unit->lead > own) own = unit->lead;
            }
        }
        /* A weak label within what somebody pasted does not outdo what he asks of it. */
        if (rank == LABEL_TASK && outside > a->less * (own > a->sure / 4 ? own : a->sure / 4)) inside = *count = 0;
        if (*count) return rank;
        memset(asks, 0, MOST_UNITS);
        for (int32_t at = 0; inside && at < t->units; at++) *count += asks[at] = there[at];
        if (*count) return rank;
    }
    int any = 0;
    for (int32_t at = 0; at < t->units; at++) any |= t->unit[at].kind == REQUEST;
    /* Where nothing else asks a rule does. */
    for (int32_t at = 0; !any && at < t->units; at++)
        if (t->unit[at].kind == OF_RULES) t->unit[at].kind = REQUEST;
    for (int32_t at = 0; at < t->units;) {
        int32_t next = at, requests = 0, beside = 0;
        for (; next < t->units && t->unit[next].line == t->unit[at].line; next++) {
            requests += t->unit[next].kind == REQUEST;
            if (t->unit[next].kind == MATERIAL) beside += t->unit[next].end - t->unit[next].begin;
        }
        for (; at < next; at++) *count += asks[at] = t->unit[at].kind == REQUEST || (requests && t->unit[at].kind == MATERIAL && beside < a->long_material);
    }
    return 0;
}

/* Units' text with what stands between those that are neighbours, into `out` as far as there is room; returns its size. */
static int32_t joined_units(const struct taken *t, const uint8_t *chosen, uint8_t *out, int32_t room) {
    int32_t kept = 0, last = -1;
    for (int32_t at = 0; at < t->units; at++) {
        const struct unit *unit = t->unit + at, *before = t->unit + last;
        if (!chosen[at]) continue;
        int32_t begin = unit->begin;
        if (last >= 0 && last + 1 == at) begin = before->end;
        else if (last >= 0) {
            int32_t breaks = before->line == unit->line ? 0 : before->block == unit->block ? 1 : 2;
            if (kept + 2 > room) return kept;
            out[kept++] = breaks ? '\n' : ' ';
            if (breaks == 2) out[kept++] = '\n';
        }
        int32_t size = unit->end - begin;
        if (size > room - kept) size = room - kept;
        memcpy(out + kept, t->text + begin, (size_t)size);
        kept += size;
        last = at;
    }
    return kept;
}

/* The units that are read: those that ask, and of the material what belongs to it. Returns how many. */
static int32_t read_units(const struct asking *a, const struct taken *t, const uint8_t *asks, int32_t rank, uint8_t *kept) {
    uint64_t telling[STEM_WORDS] = {0}, found[STEM_WORDS];
    int32_t near = 0, all = 0, others = 0;
    for (int32_t at = 0; at < t->units; at++) others |= !asks[at] && t->unit[at].kind == MATERIAL;
    /* Where there is no material nobody has to know whether it belongs. */
    for (int32_t at = 0; others && at < t->units; at++)
        if (asks[at]) {
            near = near || speaks_of(a, t->text, t->unit[at].begin, t->unit[at].end, !rank, 0);
            stems_in(a, t->text, t->unit[at].begin, t->unit[at].end, telling);
        }
    int32_t told = 0;
    for (int32_t each = 0; each < STEM_WORDS; each++) told += __builtin_popcountll(telling[each] &= ~a->common[each]);
    near = near || (!rank && told < a->fewest_telling);
    for (int32_t at = 0; at < t->units;) {
        int32_t next = at, own = 0, size = 0, shared = 0;
        for (; next < t->units && t->unit[next].block == t->unit[at].block; next++) own |= !rank && asks[next];
        if (!near && !own) {
            memset(found, 0, sizeof found);
            for (int32_t each = at; each < next; each++) {
                const struct unit *unit = t->unit + each;
                if (asks[each] || unit->kind != MATERIAL) continue;
                if (size < a->compared) stems_in(a, t->text, unit->begin, unit->end < unit->begin + a->compared ? unit->end : unit->begin + a->compared, found);
                size += unit->end - unit->begin;
            }
            for (int32_t each = 0; each < STEM_WORDS; each++) shared += __builtin_popcountll(found[each] & telling[each]);
        }
        int belongs = near || own || shared > (size < a->compared ? size : a->compared) / a->a_shared_word;
        for (; at < next; at++) all += kept[at] = asks[at] || (t->unit[at].kind == MATERIAL && (belongs || (!rank && t->unit[at].lead > 0)));
    }
    return all;
}

/* The task that a system message sets for whatever the user sends, into `out`; returns its size, 0 where it sets none. */
static int32_t standing_task(const struct asking *a, const uint8_t *system, int32_t size, const struct taken *message, const uint8_t *asks, int32_t message_rank, struct taken *t, uint8_t *out, int32_t room) {
    uint8_t tasks[MOST_UNITS];
    int32_t count, rank, lead = 0, own = 0, requests = 0, asked = 0, all = 0, brings = 0, near = 0, of_tasks = 0, of_system = 0, most, some, wins;
    take_apart(a, system, size, t);
    score_units(a, t, 1);
    rank = asking_units(a, t, tasks, &count);
    for (int32_t at = 0; at < t->units; at++) {
        tasks[at] &= t->unit[at].kind == REQUEST || t->unit[at].kind == MATERIAL;
        if (tasks[at] && t->unit[at].lead > lead) lead = t->unit[at].lead;
        if (tasks[at] && !near) near = speaks_of(a, system, t->unit[at].begin, t->unit[at].end, 0, 1);
    }
    for (int32_t at = 0; at < t->units; at++) {
        if (t->unit[at].lead >= 0) of_system += t->unit[at].end - t->unit[at].begin;
        if (tasks[at]) of_tasks += t->unit[at].end - t->unit[at].begin;
    }
    most = a->task_share * of_tasks >= of_system;
    some = a->least_share * of_tasks >= of_system;
    if (lead < (rank > 1 || most ? 1 : near ? a->least_task / 2 : a->least_task)) return 0;
    /* Documents in a system message are what a user's own question is about. */
    for (int32_t at = 0; at < t->units; at++)
        if (t->unit[at].lead < 0) some = most;
    for (int32_t at = 0; at < message->units; at++) {
        const struct unit *unit = message->unit + at;
        all += unit->end - unit->begin;
        brings |= unit->kind == MATERIAL && unit->lead < 0;
        if (asks[at] && unit->lead > own) own = unit->lead;
        if (!asks[at] || unit->kind != REQUEST) continue;
        requests++;
        asked += unit->end - unit->begin;
    }
    brings |= all > a->pasted && asked < all / 2;
    for (int32_t at = 0; at < message->labels; at++) brings |= message->label[at].rank == LABEL_MATERIAL;
    if (size > a->long_system) wins = near && most && (brings || lead > a->less * own);
    /* A label in what is pasted, such as "Problem:", does not outdo the task; one before a request does. */
    else if (message_rank) wins = near && most && lead > own;
    /* A user's own request goes before what may be a rule among others. */
    else if (requests) wins = (near && some) || (most && lead >= a->sure_task && all > a->pasted / 2);
    /* To a greeting nobody applies a task. */
    else wins = (near && some) || most || all > a->pasted / 2;
    if (!wins) return 0;
    return joined_units(t, tasks, out, room);
}

enum { IN_MESSAGE, BEHIND_LABEL, IN_SYSTEM };
enum { MOST_JOINED = MOST_SEARCHED + MOST_SYSTEM + 2 };

/* The start and the end of a text, on lines of their own, where it is longer than what is read; in place. */
static int32_t ends_of(const struct tables *t, uint8_t *text, int32_t size) {
    int32_t head = t->head_bytes, tail = t->tail_bytes;
    if (size <= head + tail + 1) return size;
    text[head] = '\n';
    memmove(text + head + 1, text + size - tail, (size_t)tail);
    return head + tail + 1;
}

/* What is read of a message with a system message, both with plain marks, and of that what asks: into `out` and `ask`, which have room for
   MOST_JOINED bytes. Returns where it stands. A size of 0 says that what asks is not told apart. */
static int32_t asked_of(const struct asking *a, const uint8_t *text, int32_t size, const uint8_t *system, int32_t system_size, uint8_t *out, int32_t *out_size, uint8_t *ask, int32_t *ask_size) {
    struct taken taken, of_system;
    uint8_t asks[MOST_UNITS], kept[MOST_UNITS];
    int32_t count, rank;
    take_apart(a, text, size, &taken);
    score_units(a, &taken, 0);
    rank = asking_units(a, &taken, asks, &count);
    if (system_size && rank <= LABEL_TASK) {
        int32_t task = standing_task(a, system, system_size, &taken, asks, rank, &of_system, ask, MOST_JOINED);
        if (task) {
            memcpy(out, ask, (size_t)task);
            memcpy(out + task, "\n\n", 2);
            memcpy(out + task + 2, text, (size_t)size);
            *out_size = task + 2 + size;
            *ask_size = task;
            return IN_SYSTEM;
        }
    }
    *ask_size = 0;
    *out_size = size;
    if (!count) {
        memcpy(out, text, (size_t)size);
        return IN_MESSAGE;
    }
    if (read_units(a, &taken, asks, rank, kept) == taken.units && !rank) {
        int32_t most = 0;
        memcpy(out, text, (size_t)size);
        for (int32_t at = 0; at < taken.units; at++) most = asks[at] && taken.unit[at].lead > most ? taken.unit[at].lead : most;
        if (most < a->told) return IN_MESSAGE;
    } else *out_size = joined_units(&taken, kept, out, MOST_JOINED);
    *ask_size = joined_units(&taken, asks, ask, MOST_JOINED);
    return rank ? BEHIND_LABEL : IN_MESSAGE;
}

/* What is read of a prompt: its texts, where what asks stands, and their sizes. A message that is `settled` is read as it is. */
static int32_t parts_of(const struct tables *t, const uint8_t *text, int32_t size, const uint8_t *system, int32_t system_size, int32_t settled, uint8_t *out, int32_t *sizes, int32_t *place) {
    uint8_t plain[MOST_SEARCHED], of_system[MOST_SYSTEM], whole[MOST_JOINED], asks[MOST_JOINED];
    int32_t same_words, asks_size = 0, whole_size;
    memcpy(plain, text, (size_t)size);
    memcpy(of_system, system, (size_t)system_size);
    size = with_plain_marks(t, plain, size);
    *place = IN_MESSAGE;
    if (settled) {
        memcpy(whole, plain, (size_t)size);
        memcpy(asks, plain, (size_t)size);
        whole_size = asks_size = size;
    } else *place = asked_of(t->asking, plain, size, of_system, with_plain_marks(t, of_system, system_size), whole, &whole_size, asks, &asks_size);
    whole_size = ends_of(t, whole, whole_size);
    asks_size = ends_of(t, asks, asks_size);
    memcpy(out, whole, (size_t)whole_size);
    sizes[0] = whole_size;
    uint8_t *ask = out + whole_size;
    int told = asks_size > 0, all_of_it = told && asks_size == whole_size && !memcmp(asks, whole, (size_t)whole_size);
    sizes[1] = ask_in(t, told ? asks : out, told ? asks_size : whole_size, ask, &same_words, !told);
    same_words &= !told || all_of_it;
    int32_t same = sizes[1] == whole_size && !memcmp(ask, out, (size_t)whole_size), all = sizes[1];
    int32_t begin = question_in(t, ask, all, sizes + 2);
    memmove(ask + all, ask + begin, (size_t)sizes[2]);
    if (sizes[2] == all) sizes[2] = -1;
    if (same) sizes[1] = -1;
    return same_words;
}

/* The plain bytes that are read of a prompt, and behind them what it asks and its question, into `out`, which has room for three texts that
   are read; the sizes of all three, the last two negative where they are the same as the one before; and where it stands. Returns 0, or
   -1 for a text or a system message that is longer than what is searched can be. */
int32_t weighbridge_parts(const struct tables *t, const uint8_t *text, int32_t size, const uint8_t *system, int32_t system_size, int32_t settled, uint8_t *out, int32_t *sizes, int32_t *place) {
    if (size < 0 || size > MOST_SEARCHED || system_size < 0 || system_size > MOST_SYSTEM) return -1;
    parts_of(t, text, size, system, system_size, settled, out, sizes, place);
    return 0;
}

/* A trained model's tables, as classifier/tables.py describes them. Every width is a multiple of BLOCK and at most WIDEST. */
struct model {
    const int8_t *terms, *own, *meanings;
    const uint16_t *meaning_at;
    const int32_t *own_first, *own_shift, *needed;
    const float *gate, *gist_bounds, *fact_bounds;
    int32_t terms_width, own_width, meanings_width, loads, summed, tiers, kinds, gist, tools_at, short_words, context_words, first_words;
    double half_read;
};

enum { BLOCK = 16, WIDEST = 256, MOST_MEANT = 256, READINGS = 5, PART_READINGS = 3, FLAGS = 3, FACTS = SKETCH_AT - FACTS_AT };

/* A row of a table, which is on its way to the cache until it is read. */
static const int8_t *row_of(const int8_t *table, int32_t width, int32_t row) {
    const int8_t *found = table + (int64_t)row * width;
    __builtin_prefetch(found);
    return found;
}

/* The weighed sum of rows. The columns of one block are added up where the processor keeps them at hand. */
static void weighed(const int8_t *const *rows, int32_t width, const float *weights, int32_t size, float *out) {
    for (int32_t block = 0; block < width; block += BLOCK) {
        float sums[BLOCK] = {0};
        for (int32_t at = 0; at < size; at++)
            for (int32_t column = 0; column < BLOCK; column++) sums[column] += weights[at] * (float)rows[at][block + column];
        memcpy(out + block, sums, sizeof sums);
    }
}

/* The sum of the meanings of MOST_MEANT words at most, in whole numbers: of 8 bits each, so 16 hold the sum. */
static void meant(const struct model *m, const int32_t *words, int32_t size, float *out) {
    const int8_t *rows[MOST_MEANT];
    for (int32_t at = 0; at < size; at++) rows[at] = row_of(m->meanings, m->meanings_width, m->meaning_at[words[at]]);
    for (int32_t block = 0; block < m->meanings_width; block += BLOCK) {
        int16_t sums[BLOCK] = {0};
        for (int32_t at = 0; at < size; at++)
            for (int32_t column = 0; column < BLOCK; column++) sums[column] = (int16_t)(sums[column] + rows[at][block + column]);
        for (int32_t column = 0; column < BLOCK; column++) out[block + column] = (float)sums[column];
    }
}

static float within(float value, float low, float high) { return value < low ? low : value > high ? high : value; }

/* What was found in a text, or in a part of it; its facts are pointed to by whoever has them. */
struct found {
    const int32_t *meanings, *buckets;
    const float *sublinear, *facts;
    int32_t meant, distinct;
};

static struct found found_in(const struct tables *t, const int32_t *out, int32_t size) {
    const int32_t *meanings = out + SKETCH_AT + t->sketch, *buckets = meanings + t->head_words + t->tail_words;
    struct found found = {meanings, buckets, (const float *)(buckets + 4 * size), 0, out[2], out[0]};
    return found;
}

/* A text's meaning in three readings: the mean, the sum as it grows, and the mean of the first words. */
static void part_of(const struct model *m, const struct found *part, float *out) {
    float of_words[WIDEST], of_first[WIDEST];
    int32_t width = m->meanings_width, size = part->meant, first = size < m->first_words ? size : m->first_words;
    meant(m, part->meanings, size, of_words);
    meant(m, part->meanings, first, of_first);
    float mean = (float)(1.0 / (1 + size)), grown = (float)(1.0 / sqrt(m->half_read + size)), begun = (float)(1.0 / (1 + first));
    for (int32_t at = 0; at < width; at++) {
        out[at] = mean * of_words[at];
        out[width + at] = grown * of_words[at];
        out[2 * width + at] = begun * of_first[at];
    }
}

/* What the small networks read: the meanings in their readings, of the text, of what it asks and of its question; the facts of
   all three, and flags; of these the ones that are needed. A part that is the same as the one before it is not read again. */
static void gist_of(const struct model *m, const struct found parts[3], const int32_t *before, int32_t before_size, float *out) {
    float known[(READINGS + 2 * PART_READINGS) * WIDEST + 3 * FACTS + FLAGS], of_before[WIDEST];
    int32_t width = m->meanings_width, is_short = parts[0].meant < m->short_words;
    float then = (float)(1.0 / (1 + before_size)), *of_part[3] = {known, known + READINGS * width, known + (READINGS + PART_READINGS) * width};
    float *rest = known + (READINGS + 2 * PART_READINGS) * width;
    for (int32_t part = 0; part < 3; part++, rest += FACTS) {
        memcpy(rest, parts[part].facts, FACTS * sizeof(float));
        if (part && parts[part].meanings == parts[part - 1].meanings)
            memcpy(of_part[part], of_part[part - 1], (size_t)(PART_READINGS * width) * sizeof(float));
        else
            part_of(m, parts + part, of_part[part]);
    }
    /* Of the message itself the first words are the last reading; the message before stands between. */
    memcpy(known + 4 * width, known + 2 * width, (size_t)width * sizeof(float));
    meant(m, before, before_size, of_before);
    for (int32_t at = 0; at < width; at++) {
        known[2 * width + at] = then * of_before[at];
        known[3 * width + at] = is_short ? then * of_before[at] : 0;
    }
    rest[0] = before_size > 0;
    rest[1] = before_size > 0 && is_short;
    rest[2] = parts[0].facts[m->tools_at] > 0;
    for (int32_t at = 0; at < m->gist; at++) out[at] = within(known[m->needed[at]], m->gist_bounds[at], m->gist_bounds[m->gist + at]);
}

/* The terms' weights, whose squares add up to 1, and the weighed sum of their rows. */
static void terms_of(const struct model *m, const struct found *part, float *weights, float *sums) {
    const int8_t *rows[2 * MOST_BYTES];
    int32_t width = m->terms_width, size = part->distinct;
    double square = 0;
    for (int32_t at = 0; at < size; at++) rows[at] = row_of(m->terms, width, part->buckets[at]);
    for (int32_t at = 0; at < size; at++) {
        weights[at] = part->sublinear[at] * (float)rows[at][width - 1];
        square += (double)weights[at] * weights[at];
    }
    float unit = square > 0 ? (float)(1 / sqrt(square)) : 0;
    for (int32_t at = 0; at < size; at++) weights[at] *= unit;
    weighed(rows, width, weights, size, sums);
}

/* What the rest is linear in: sums of the terms' rows, those of the tiers of what is asked alone, facts, whether there are tools,
   and in the place of the likeliest kind its own sums, facts and a constant, as far as the gate is sure of it. */
static void sums_of(const struct model *m, const struct found parts[3], float *out) {
    float weights[2 * MOST_BYTES], found[WIDEST], of_ask[WIDEST], scores[WIDEST];
    const int8_t *rows[2 * MOST_BYTES];
    int32_t best = 0, size = parts[0].distinct, each = m->loads + FACTS + 1;
    const int32_t *buckets = parts[0].buckets;
    const float *facts = parts[0].facts;
    double all = 0;
    if (parts[1].buckets != buckets) terms_of(m, parts + 1, weights, of_ask);
    terms_of(m, parts, weights, found);
    memcpy(out, found, (size_t)m->summed * sizeof(float));
    if (parts[1].buckets != buckets) memcpy(out + m->loads, of_ask + m->loads, (size_t)m->tiers * sizeof(float));
    out += m->summed;
    for (int32_t at = 0; at < FACTS; at++) out[at] = within(facts[at], m->fact_bounds[at], m->fact_bounds[FACTS + at]);
    const float *bounded = out, *gate = m->gate;
    out += FACTS;
    *out++ = facts[m->tools_at] > 0;
    for (int32_t kind = 0; kind < m->kinds; kind++) {
        scores[kind] = *gate++ * found[m->summed + kind];
        for (int32_t at = 0; at < FACTS; at++) scores[kind] += *gate++ * bounded[at];
        scores[kind] += *gate++;
        if (scores[kind] > scores[best]) best = kind;
    }
    for (int32_t kind = 0; kind < m->kinds; kind++) all += exp((double)scores[kind] - scores[best]);
    float sure = (float)(1 / all);
    memset(out, 0, (size_t)(m->kinds * each) * sizeof(float));
    out += best * each;
    for (int32_t at = 0; at < size; at++) rows[at] = row_of(m->own, m->own_width, m->own_first[best] + (buckets[at] >> m->own_shift[best]));
    weighed(rows, m->own_width, weights, size, found);
    for (int32_t at = 0; at < m->loads; at++) out[at] = sure * found[at];
    for (int32_t at = 0; at < FACTS; at++) out[m->loads + at] = sure * bounded[at];
    out[m->loads + FACTS] = sure;
}

enum { ROOM = SKETCH_AT + WIDEST + MOST_MEANT + 6 * MOST_BYTES };

/* What the graph takes, and the sketch, of what is searched of a message and of a system message, and of what is read of the message before it. Returns the length that is
   asked for, UNITS times the number and the unit; or -1 as above. */
int32_t weighbridge_inputs(const struct tables *t, const struct model *m, const uint8_t *text, int32_t size, const uint8_t *system, int32_t system_size,
                           int32_t settled, const uint8_t *before, int32_t before_size, float *out, int32_t turns, int32_t tools, int32_t images,
                           int32_t json_mode, int32_t system_chars, int32_t history_chars) {
    struct request request = {turns, tools, images, json_mode, system_chars, history_chars};
    int32_t found[3][ROOM], earlier[MOST_MEANT], sizes[3], earlier_size;
    uint8_t texts[3 * MOST_BYTES], plain[MOST_BYTES];
    float of_facts[3][FACTS];
    struct content content;
    struct found parts[3];
    if (t->sketch > WIDEST || t->head_words + t->tail_words > MOST_MEANT || m->context_words > MOST_MEANT) return -1;
    if (size < 0 || size > MOST_SEARCHED || system_size < 0 || system_size > MOST_SYSTEM) return -1;
    if (t->head_bytes + t->tail_bytes + 1 > MOST_BYTES || before_size < 0 || before_size > MOST_BYTES) return -1;
    int32_t place, same_words = parts_of(t, text, size, system, system_size, settled, texts, sizes, &place);
    memcpy(plain, before, (size_t)before_size);
    earlier_size = weighbridge_words(t, plain, with_plain_marks(t, plain, before_size), m->context_words, earlier);
    const uint8_t *at = texts;
    for (int32_t part = 0, length = 0; part < 3; part++) {
        if (part) parts[part] = parts[part - 1];
        /* A negative size says that it is the one before; what is asked lies behind the text even so. */
        if (sizes[part] >= 0) {
            length = sizes[part];
            if (part != 1 || !same_words) {
                content_of(t, at, length, found[part], &content);
                parts[part] = found_in(t, found[part], length);
            }
            facts(t, &request, at, length, &content, of_facts[part]);
            parts[part].facts = of_facts[part];
        }
        if (!part) whole_of(t, at, length, found[0]);
        at += length;
    }
    gist_of(m, parts, earlier, earlier_size, out);
    out += m->gist;
    sums_of(m, parts, out);
    out += m->summed + FACTS + 1 + m->kinds * (m->loads + FACTS + 1);
    memcpy(out, (const float *)found[0] + SKETCH_AT, (size_t)t->sketch * sizeof(float));
    return UNITS * found[0][3] + found[0][4];
}

/* A byte's class, one of sixteen; what two neighbouring classes weigh, and what three do, as two pairs; the class before a
   text's first byte. classifier/tokens.py has the first two. */
struct pairs {
    const uint8_t *class_of;
    const int32_t *weight;
    const int16_t *weight_of_three;
    uint8_t before;
};

/* The sum of the weights of every two neighbouring bytes of a text. */
int64_t weighbridge_pairs(const struct pairs *p, const uint8_t *text, int32_t size) {
    const uint8_t *class_of = p->class_of;
    uint32_t before = p->before;
    int64_t sum = 0;
    int32_t at = 0;
#pragma GCC unroll 4
    for (; at + 1 < size; at += 2) {
        uint32_t now = class_of[text[at]], next = class_of[text[at + 1]];
        sum += p->weight_of_three[before << 8 | now << 4 | next];
        before = next;
    }
    if (at < size) sum += p->weight[before << 4 | class_of[text[at]]];
    return sum;
}
