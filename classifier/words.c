/* The loop over a text's bytes that classifier/features.py does with numpy, and the look-ups of classifier/tables.py: the
   same numbers, in a single pass.

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

enum { MOST_BYTES = 4096, CUE_GROUPS = 5, BUCKET_BITS = 17, LOW_BITS = 9, HIGH_BITS = 8, LANES = 4, PLACE_SHIFT = 25 };

/* What kind of byte each byte is; the order is that of classifier/features.py. */
enum { LOWER, UPPER, DIGIT, UNDERSCORE, LEAD, REST, SPACE, NEWLINE, MATH, BRACKET, BACKSLASH, DOLLAR, QUESTION, COMMA, STOP, OTHER, KINDS };

struct tables {
    const uint64_t *value;     /* by byte: a number for each byte of a word, 0 for every other byte */
    const uint8_t *kind;       /* by byte */
    const uint8_t *ideograph;  /* by byte: whether a character that is a word of its own begins with it */
    const uint8_t *cue;        /* by 16 bits of a word's hash: its cue group, 0 for none */
    const uint8_t *is_cue;     /* the same as bits, for few words are cues and few bytes stay in the cache */
    const double *weight;      /* by count: what a term adds to the sketch */
    const float *sublinear;    /* by count: what a term counts in the graph */
    uint64_t base, pair, finish, placing;
    int32_t word_bits, head_words, tail_words, sketch, searched;
};

/* What a request says beside its text. */
struct request {
    int64_t turns, tools, images, json_mode, system_chars, history_chars;
};

/* Where what is found stands, in numbers of 32 bits. */
enum { FACTS_AT = 5, SKETCH_AT = 34 };

static uint64_t mixed(uint64_t hash, uint64_t finish) { return (hash ^ (hash >> 31)) * finish; }

static double log_more(int64_t count) { return log1p((double)(count > 0 ? count : 0)); }

/* Finds the words of a text; returns their number. A hash is a polynomial over the word's bytes. */
static int32_t words_in(const struct tables *t, const uint8_t *text, int32_t size, uint64_t *hashes, int32_t *starts,
                        int32_t *in_words) {
    int32_t words = 0, inside = 0;
    int previous = 0;
    uint64_t power = 1, hash = 0;
    for (int32_t at = 0; at < size; at++) {
        uint64_t value = t->value[text[at]];
        if (!value) {
            previous = 0;
            continue;
        }
        inside++;
        if (!previous || t->ideograph[text[at]] || (at >= 3 && t->ideograph[text[at - 3]])) {
            if (words) hashes[words - 1] = hash;
            starts[words++] = at;
            hash = 0;
            power = 1;
        }
        previous = 1;
        hash += value * power;
        power *= t->base;
    }
    if (words) hashes[words - 1] = hash;
    *in_words = inside;
    return words;
}

/* Sorts bucket numbers by their low bits, then by their high ones; keeps each once, and says how often it was there. */
static int32_t counted(uint32_t *buckets, uint32_t *other, int32_t size, int32_t *distinct, int32_t *counts) {
    uint32_t low[(1 << LOW_BITS) + 1] = {0}, high[(1 << HIGH_BITS) + 1] = {0};
    for (int32_t at = 0; at < size; at++) {
        low[(buckets[at] & ((1 << LOW_BITS) - 1)) + 1]++;
        high[(buckets[at] >> LOW_BITS) + 1]++;
    }
    for (int32_t at = 1; at <= 1 << LOW_BITS; at++) low[at] += low[at - 1];
    for (int32_t at = 1; at <= 1 << HIGH_BITS; at++) high[at] += high[at - 1];
    for (int32_t at = 0; at < size; at++) other[low[buckets[at] & ((1 << LOW_BITS) - 1)]++] = buckets[at];
    for (int32_t at = 0; at < size; at++) buckets[high[other[at] >> LOW_BITS]++] = other[at];
    int32_t last = 0, since = 0;
    for (int32_t at = 0; at < size; at++) {
        int differs = buckets[at] != buckets[since];
        last += differs;
        since = differs ? at : since;
        distinct[last] = (int32_t)buckets[at];
        counts[last] = at - since + 1;
    }
    return size ? last + 1 : 0;
}

/* Lines that begin like a choice ("A." or "A)"), and as a list's ("- ", "* ", "1. ", "2. "). */
static void line_starts(const uint8_t *text, int32_t size, int32_t *choices, int32_t *items) {
    const uint8_t *at = text, *end = text + size;
    *choices = *items = 0;
    while ((at = memchr(at, '\n', (size_t)(end - at)))) {
        int64_t left = end - ++at;
        if (left >= 2 && at[0] >= 'A' && at[0] <= 'J' && (at[1] == '.' || at[1] == ')')) ++*choices;
        else if (left >= 2 && (at[0] == '-' || at[0] == '*') && at[1] == ' ') ++*items;
        else if (left >= 3 && (at[0] == '1' || at[0] == '2') && at[1] == '.' && at[2] == ' ') ++*items;
    }
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

/* The first length that a text asks for, as in "300 words" or "a 5-line answer": the number, and which unit from 1 on. */
static void asked(const uint8_t *text, int32_t size, int32_t *number, int32_t *unit) {
    static const char *const units[] = {"word", "sentence", "paragraph", "line", "page"};
    const uint8_t *end = text + size;
    *number = *unit = 0;
    for (const uint8_t *at = text; at < end; at++) {
        if ((uint8_t)(*at - '0') >= 10) continue;
        const uint8_t *first = at;
        while (at + 1 < end && (uint8_t)(at[1] - '0') < 10) at++;
        const uint8_t *next = at + 1;
        int32_t between = 0, length;
        while (between < 4 && (length = parts(next, end - next))) next += length, between++;
        if (between < 1 || between > 3) continue;
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

static void facts(const struct tables *t, const struct request *request, const uint8_t *text, int32_t size,
                  const int32_t *starts, int32_t words, int32_t in_words, const int32_t *cues, float *out) {
    /* Neighbours are counted apart: most are alike, and one counter would have to wait for itself. */
    int32_t kinds[KINDS] = {0}, apart[LANES][KINDS] = {{0}}, numbers = 0, choices, items;
    for (int32_t at = 0; at < size; at++) apart[at % LANES][t->kind[text[at]]]++;
    for (int32_t at = 0; at < LANES * KINDS; at++) kinds[at % KINDS] += apart[at / KINDS][at % KINDS];
    for (int32_t word = 0; word < words; word++) numbers += (uint8_t)(text[starts[word]] - '0') < 10;
    line_starts(text, size, &choices, &items);
    double whole = size > 1 ? size : 1, each = (double)size / (words > 1 ? words : 1);
    int32_t beyond_ascii = kinds[LEAD] + kinds[REST];
    int32_t letters = in_words - kinds[DIGIT] - kinds[UNDERSCORE] - beyond_ascii;
    *out++ = (float)log_more(size);
    *out++ = (float)log_more(words);
    *out++ = (float)(each < 16.0 ? each : 16.0);
    *out++ = (float)(kinds[DIGIT] / whole);
    *out++ = (float)(kinds[UPPER] / (double)(letters > 1 ? letters : 1));
    *out++ = (float)(kinds[MATH] / whole);
    *out++ = (float)(kinds[BRACKET] / whole);
    *out++ = (float)(kinds[BACKSLASH] / whole);
    *out++ = (float)(kinds[DOLLAR] / whole);
    *out++ = (float)(beyond_ascii / whole);
    *out++ = (float)log_more(kinds[NEWLINE]);
    *out++ = (float)log_more(kinds[QUESTION]);
    *out++ = (float)log_more(numbers);
    *out++ = (float)log_more(choices);
    *out++ = (float)log_more(kinds[COMMA]);
    *out++ = (float)log_more(kinds[STOP]);
    *out++ = (float)log_more(items);
    *out++ = (float)fenced(text, size);
    for (int32_t group = 1; group <= CUE_GROUPS; group++) *out++ = (float)log_more(cues[group]);
    *out++ = (float)log_more(request->turns - 1);
    *out++ = (float)log_more(request->tools);
    *out++ = (float)log_more(request->images);
    *out++ = (float)(request->json_mode != 0);
    *out++ = (float)log_more(request->system_chars);
    *out++ = (float)log_more(request->history_chars);
}

/* Each bucket adds its weight to a place, or takes it away; then all is of length 1. The lowest bit of the place is the sign. */
static void sketched(const struct tables *t, const int32_t *buckets, const int32_t *counts, int32_t distinct, float *out) {
    double both[1 << (32 - PLACE_SHIFT)] = {0}, square = 0;
    for (int32_t at = 0; at < distinct; at++) both[(uint32_t)buckets[at] * (uint32_t)t->placing >> PLACE_SHIFT] += t->weight[counts[at]];
    for (int32_t at = 0; at < t->sketch; at++) {
        both[at] = both[2 * at] - both[2 * at + 1];
        square += both[at] * both[at];
    }
    double length = sqrt(square);
    for (int32_t at = 0; at < t->sketch; at++) out[at] = (float)(length > 0 ? both[at] / length : both[at]);
}

/* The features of one text: the numbers of distinct buckets, of terms, and of meanings; the length asked for; 29 facts and the sketch, as floats; and
   with room for head_words + tail_words, 2 * size, 2 * size and 2 * size numbers the meanings, the buckets, their counts, and
   what these count as floats. Returns 0, or -1 for a text that is longer than a text that is read can be. */
int32_t weighbridge_features(const struct tables *t, const struct request *request, const uint8_t *text, int32_t size,
                             int32_t *out) {
    static const int32_t bucket_shift = 64 - BUCKET_BITS;
    uint64_t hashes[MOST_BYTES], joined[MOST_BYTES];
    uint32_t sorted[2 * MOST_BYTES], other[2 * MOST_BYTES];
    int32_t starts[MOST_BYTES], cues[256] = {0}, in_words, pairs = 0;
    if (size < 0 || size > MOST_BYTES) return -1;
    int32_t *meanings = out + SKETCH_AT + t->sketch, *buckets = meanings + t->head_words + t->tail_words;
    int32_t *counts = buckets + 2 * size;
    float *sublinear = (float *)(counts + 2 * size);
    int32_t words = words_in(t, text, size, hashes, starts, &in_words);
    int32_t terms = words ? 2 * words - 1 : 0;
    for (int32_t word = 0; word + 1 < words; word++) {
        uint64_t pair = mixed(hashes[word] * t->pair + hashes[word + 1], t->finish);
        sorted[words + word] = (uint32_t)(pair >> bucket_shift);
        if (starts[word + 1] - starts[word] == 3 && t->ideograph[text[starts[word]]] && t->ideograph[text[starts[word + 1]]])
            joined[pairs++] = pair;
    }
    for (int32_t word = 0; word < words; word++) {
        hashes[word] = mixed(hashes[word], t->finish);
        sorted[word] = (uint32_t)(hashes[word] >> bucket_shift);
        uint32_t cue = (uint32_t)(hashes[word] >> 48);
        if (t->is_cue[cue >> 3] >> (cue & 7) & 1) cues[t->cue[cue]]++;
    }
    /* The meaning is looked up of words, then of pairs of ideographs: the first of them all, and the last. */
    int32_t all = words + pairs, most = t->head_words + t->tail_words;
    int32_t meant = all < most ? all : most;
    for (int32_t at = 0; at < meant; at++) {
        int32_t from = all > most && at >= t->head_words ? all - most + at : at;
        meanings[at] = (int32_t)((from < words ? hashes[from] : joined[from - words]) >> (64 - t->word_bits));
    }
    out[0] = counted(sorted, other, terms, buckets, counts);
    out[1] = terms;
    out[2] = meant;
    asked(text, size < t->searched ? size : t->searched, out + 3, out + 4);
    for (int32_t at = 0; at < out[0]; at++) sublinear[at] = t->sublinear[counts[at]];
    sketched(t, buckets, counts, out[0], (float *)(out + SKETCH_AT));
    facts(t, request, text, size, starts, words, in_words, cues, (float *)(out + FACTS_AT));
    return 0;
}

/* The words of a text by meaning, `most` at most; returns their number, or -1 as above. */
int32_t weighbridge_words(const struct tables *t, const uint8_t *text, int32_t size, int32_t most, int32_t *meanings) {
    uint64_t hashes[MOST_BYTES];
    int32_t starts[MOST_BYTES], in_words;
    if (size < 0 || size > MOST_BYTES) return -1;
    int32_t words = words_in(t, text, size, hashes, starts, &in_words);
    if (words > most) words = most;
    for (int32_t word = 0; word < words; word++)
        meanings[word] = (int32_t)(mixed(hashes[word], t->finish) >> (64 - t->word_bits));
    return words;
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

enum { BLOCK = 16, WIDEST = 256, MOST_MEANT = 256, AHEAD = 16, READINGS = 5, PART_READINGS = 3, FLAGS = 3, FACTS = SKETCH_AT - FACTS_AT };

/* The weighed sum of rows. The columns of one block are added up where the processor keeps them at hand. */
static void weighed(const int8_t *table, int32_t width, const int32_t *rows, const float *weights, int32_t size, float *out) {
    for (int32_t block = 0; block < width; block += BLOCK) {
        float sums[BLOCK] = {0};
        for (int32_t at = 0; at < size; at++) {
            const int8_t *row = table + (int64_t)rows[at] * width + block;
            if (at + AHEAD < size) __builtin_prefetch(table + (int64_t)rows[at + AHEAD] * width + block);
            for (int32_t column = 0; column < BLOCK; column++) sums[column] += weights[at] * (float)row[column];
        }
        memcpy(out + block, sums, sizeof sums);
    }
}

/* The sum of the meanings of MOST_MEANT words at most, in whole numbers: of 8 bits each, so 16 hold the sum. */
static void meant(const struct model *m, const int32_t *words, int32_t size, float *out) {
    int32_t rows[MOST_MEANT];
    for (int32_t at = 0; at < size; at++) rows[at] = m->meaning_at[words[at]];
    for (int32_t block = 0; block < m->meanings_width; block += BLOCK) {
        int16_t sums[BLOCK] = {0};
        for (int32_t at = 0; at < size; at++) {
            const int8_t *row = m->meanings + (int64_t)rows[at] * m->meanings_width + block;
            if (at + AHEAD < size) __builtin_prefetch(m->meanings + (int64_t)rows[at + AHEAD] * m->meanings_width + block);
            for (int32_t column = 0; column < BLOCK; column++) sums[column] = (int16_t)(sums[column] + row[column]);
        }
        for (int32_t column = 0; column < BLOCK; column++) out[block + column] = (float)sums[column];
    }
}

static float within(float value, float low, float high) { return value < low ? low : value > high ? high : value; }

/* What was found in a text, or in a part of it. */
struct found {
    const int32_t *meanings, *buckets;
    const float *sublinear, *facts;
    int32_t meant, distinct;
};

static struct found found_in(const struct tables *t, const int32_t *out, int32_t size) {
    const int32_t *meanings = out + SKETCH_AT + t->sketch, *buckets = meanings + t->head_words + t->tail_words;
    struct found found = {meanings, buckets, (const float *)(buckets + 4 * size), (const float *)out + FACTS_AT, out[2], out[0]};
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
    int32_t width = m->terms_width, size = part->distinct;
    const int32_t *buckets = part->buckets;
    double square = 0;
    for (int32_t at = 0; at < size; at++) {
        if (at + AHEAD < size) __builtin_prefetch(m->terms + (int64_t)buckets[at + AHEAD] * width);
        weights[at] = part->sublinear[at] * (float)m->terms[(int64_t)buckets[at] * width + width - 1];
        square += (double)weights[at] * weights[at];
    }
    float unit = square > 0 ? (float)(1 / sqrt(square)) : 0;
    for (int32_t at = 0; at < size; at++) weights[at] *= unit;
    weighed(m->terms, width, buckets, weights, size, sums);
}

/* What the rest is linear in: sums of the terms' rows, those of the tiers of what is asked alone, facts, whether there are tools,
   and in the place of the likeliest kind its own sums, facts and a constant, as far as the gate is sure of it. */
static void sums_of(const struct model *m, const struct found parts[3], float *out) {
    float weights[2 * MOST_BYTES], found[WIDEST], of_ask[WIDEST], scores[WIDEST];
    int32_t rows[2 * MOST_BYTES], best = 0, size = parts[0].distinct, each = m->loads + FACTS + 1;
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
    for (int32_t at = 0; at < size; at++) rows[at] = m->own_first[best] + (buckets[at] >> m->own_shift[best]);
    weighed(m->own, m->own_width, rows, weights, size, found);
    for (int32_t at = 0; at < m->loads; at++) out[at] = sure * found[at];
    for (int32_t at = 0; at < FACTS; at++) out[m->loads + at] = sure * bounded[at];
    out[m->loads + FACTS] = sure;
}

enum { ROOM = SKETCH_AT + WIDEST + MOST_MEANT + 6 * MOST_BYTES };

/* What the graph takes, the sketch, and the length that is asked for, of a text, what it asks, its question, and the message
   before it. A size below 0 says that a part is the one before it. Returns 0, or -1 as above. */
int32_t weighbridge_inputs(const struct tables *t, const struct model *m, const struct request *request, const uint8_t *text,
                         int32_t size, const uint8_t *ask, int32_t ask_size, const uint8_t *question, int32_t question_size,
                         const uint8_t *before, int32_t before_size, float *out) {
    int32_t whole[ROOM], rest[2][ROOM], earlier[MOST_MEANT];
    struct found parts[3];
    if (t->sketch > WIDEST || t->head_words + t->tail_words > MOST_MEANT || m->context_words > MOST_MEANT) return -1;
    int32_t earlier_size = weighbridge_words(t, before, before_size, m->context_words, earlier);
    if (earlier_size < 0 || weighbridge_features(t, request, text, size, whole)) return -1;
    parts[0] = parts[1] = found_in(t, whole, size);
    if (ask_size >= 0) {
        if (weighbridge_features(t, request, ask, ask_size, rest[0])) return -1;
        parts[1] = found_in(t, rest[0], ask_size);
    }
    parts[2] = parts[1];
    if (question_size >= 0) {
        if (weighbridge_features(t, request, question, question_size, rest[1])) return -1;
        parts[2] = found_in(t, rest[1], question_size);
    }
    gist_of(m, parts, earlier, earlier_size, out);
    out += m->gist;
    sums_of(m, parts, out);
    /* Between them is room for the loads, which the graph gives. */
    out += m->summed + FACTS + 1 + m->kinds * (m->loads + FACTS + 1) + m->loads;
    memcpy(out, (const float *)whole + SKETCH_AT, (size_t)t->sketch * sizeof(float));
    out[t->sketch] = (float)whole[3];
    out[t->sketch + 1] = (float)whole[4];
    return 0;
}

/* The sum of the weights of every two neighbouring bytes of a text by their classes, sixteen of them; before the first byte
   stands one of class `before`. classifier/tokens.py has the tables. */
int64_t weighbridge_pairs(const uint8_t *class_of, const int32_t *weights, uint8_t before, const uint8_t *text, int64_t size) {
    int64_t sum = 0;
    for (int64_t at = 0; at < size; at++) {
        uint8_t now = class_of[text[at]];
        sum += weights[before << 4 | now];
        before = now;
    }
    return sum;
}
