/* TestU01's SmallCrush (L'Ecuyer and Simard 2007) over 32-bit little-endian words from standard input.

   cc smallcrush.c -o smallcrush -l:libtestu01.a -l:libtestu01probdist.a -l:libtestu01mylib.a -lm

   After a line "RESULTS", prints one line per statistic: its name, a tab and its p-value. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <testu01/bbattery.h>
#include <testu01/swrite.h>
#include <testu01/unif01.h>

static uint32_t words[1 << 16];
static size_t next = 0, filled = 0;

static unsigned int word(void)
{
    if (next == filled) {
        filled = fread(words, sizeof(uint32_t), sizeof(words) / sizeof(uint32_t), stdin);
        next = 0;
        if (filled == 0) {
            fprintf(stderr, "smallcrush: the input ended\n");
            exit(1);
        }
    }
    return words[next++];
}

int main(void)
{
    char name[] = "words";
    unif01_Gen *generator = unif01_CreateExternGenBits(name, word);
    swrite_Basic = FALSE;
    bbattery_SmallCrush(generator);
    fprintf(stdout, "\nRESULTS\n");
    for (int i = 0; i < bbattery_NTests; i++)
        printf("%s\t%.17g\n", bbattery_TestNames[i], bbattery_pVal[i]);
    unif01_DeleteExternGenBits(generator);
    return 0;
}
