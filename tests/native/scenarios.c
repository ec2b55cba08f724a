/* Runs one scenario; see scenario_kit.h. */
#include "scenario_kit.h"

#include <string.h>

#define GROUPS 7

int main(int count, char **arguments) {
    EXPECT(count == 3);
    const struct named_scenario *groups[GROUPS] = {
        loading_scenarios,  streaming_scenarios, fault_scenarios, fork_scenarios,
        transfer_scenarios, mask_scenarios,      origin_scenarios};
    for (size_t g = 0; g < GROUPS; g++) {
        for (const struct named_scenario *s = groups[g]; s->name != NULL; s++) {
            if (strcmp(s->name, arguments[1]) == 0) {
                s->run(arguments[2]);
                puts("held");
                return 0;
            }
        }
    }
    fprintf(stderr, "no scenario is called %s\n", arguments[1]);
    return 2;
}
