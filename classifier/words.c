/* The loop over a text's bytes that classifier/features.py does with numpy, and the look-ups of classifier/tables.py: the same numbers, in a
   single pass.

   Tables come from there, so nothing is written down twice; classifier/compiled.py calls it. It allocates nothing, and knows
   nothing of Python. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* SHA-256 of this file, by which a library is known that an earlier version left behind. */
#ifndef WORDS_SOURCE
#define WORDS_SOURCE ""
#endif
const char weighbridge_source[65] = WORDS_SOURCE;

enum { MOST_BYTES = 37 * 64, CUE_GROUPS = 5, BUCKET_BITS = 17, BLOCK_BYTES = 64, IDEOGRAPH_BYTES = 3, MARK_BYTES = 5, LONG_CODE = 12, PLACE_SHIFT = 25 };
/* More than there can be terms, which are words and pairs of them. */
enum { PLACE_BITS = 13, MOST_TERMS = 1 << PLACE_BITS };
static const uint32_t NOTHING = 0xFFFFFFFF;

/* What kind of byte each byte is; the order is that of classifier/features.py. */
enum { LOWER, UPPER, DIGIT, UNDERSCORE, LEAD, REST, SPACE, NEWLINE, MATH, BRACKET, BACKSLASH, DOLLAR, QUESTION, COMMA, STOP, OTHER, KINDS };

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
    uint64_t pair, finish, placing;
    int32_t word_bits, head_words, tail_words, head_bytes, tail_bytes, sketch, searched, marks_known, long_quote, long_sentence;
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

/* Signs beyond ASCII become the plain ones that they are read as, in place; returns the number of bytes that are left. */
static int32_t with_plain_marks(const struct tables *t, uint8_t *text, int32_t size) {
    int32_t kept = 0, at = 0;
    while (at < size) {
        for (; size - at >= EIGHT && !(eight_of(text + at) & EACH(0x80)); at += EIGHT, kept += EIGHT) memmove(text + kept, text + at, EIGHT);
        if (at == size) break;
        if (text[at] < 0x80) {
            text[kept++] = text[at++];
            continue;
        }
        const uint8_t *mark = mark_at(t, text + at, size - at);
        if (mark) {
            text[kept++] = mark[MARK_BYTES - 1];
            at += mark[0];
        } else text[kept++] = text[at++];
    }
    return kept;
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
   left out, if anything: whatever else is left out is longer than what is put in its place. */
static int32_t ask_in(const struct tables *t, const uint8_t *text, int32_t size, uint8_t *ask, int32_t *same_words) {
    int32_t lines = 0;
    memcpy(ask, text, (size_t)size);
    int32_t kept = without_marked(ask, without_fences(ask, size), '`', LONG_CODE, 0);
    kept = without_single_quoted(ask, without_marked(ask, kept, '"', t->long_quote, 1), t->long_quote);
    *same_words = kept == size;
    if (next_of(ask, 0, kept, '\n') < kept) kept = first_and_last(ask, kept, &lines);
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

/* What is read of a text, into `out`: of a long one its start and its end, on lines of their own. Returns its size. */
static int32_t read_of(const struct tables *t, const uint8_t *text, int32_t size, int32_t characters, uint8_t *out) {
    int32_t head = t->head_bytes, tail = t->tail_bytes, most = head + tail + 1;
    if (size < most || (size == most && characters < most)) {
        memcpy(out, text, (size_t)size);
        return size;
    }
    memcpy(out, text, (size_t)head);
    out[head] = '\n';
    memcpy(out + head + 1, text + size - tail, (size_t)tail);
    return most;
}

/* A text's plain bytes, in place, and behind them what it asks and its question, where there is room for three texts; the sizes of all
   three, the last two negative where they are the same as the one before. Returns whether what is asked has the text's words. */
static int32_t parts_of(const struct tables *t, uint8_t *out, int32_t size, int32_t *sizes) {
    int32_t same_words;
    sizes[0] = with_plain_marks(t, out, size);
    uint8_t *ask = out + sizes[0];
    sizes[1] = ask_in(t, out, sizes[0], ask, &same_words);
    int32_t same = sizes[1] == sizes[0] && !memcmp(ask, out, (size_t)sizes[0]), all = sizes[1];
    int32_t begin = question_in(t, ask, all, sizes + 2);
    memcpy(ask + all, ask + begin, (size_t)sizes[2]);
    if (sizes[2] == all) sizes[2] = -1;
    if (same) sizes[1] = -1;
    return same_words;
}

/* The same of what is read of a text, into `out`. Returns 0, or -1 as above. */
int32_t weighbridge_parts(const struct tables *t, const uint8_t *text, int32_t size, uint8_t *out, int32_t *sizes) {
    if (size < 0 || size > MOST_BYTES) return -1;
    memcpy(out, text, (size_t)size);
    parts_of(t, out, size, sizes);
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

/* What the graph takes, and the sketch, of a text of any length, and of what is read of the message before it. Returns the length that is
   asked for, UNITS times the number and the unit; or -1 as above. */
int32_t weighbridge_inputs(const struct tables *t, const struct model *m, const uint8_t *text, int32_t size, int32_t characters,
                           const uint8_t *before, int32_t before_size, float *out, int32_t turns, int32_t tools, int32_t images,
                           int32_t json_mode, int32_t system_chars, int32_t history_chars) {
    struct request request = {turns, tools, images, json_mode, system_chars, history_chars};
    int32_t found[3][ROOM], earlier[MOST_MEANT], sizes[3], earlier_size;
    uint8_t texts[3 * MOST_BYTES], plain[MOST_BYTES];
    float of_facts[3][FACTS];
    struct content content;
    struct found parts[3];
    if (t->sketch > WIDEST || t->head_words + t->tail_words > MOST_MEANT || m->context_words > MOST_MEANT) return -1;
    if (size < 0 || t->head_bytes + t->tail_bytes + 1 > MOST_BYTES || before_size < 0 || before_size > MOST_BYTES) return -1;
    int32_t same_words = parts_of(t, texts, read_of(t, text, size, characters, texts), sizes);
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
