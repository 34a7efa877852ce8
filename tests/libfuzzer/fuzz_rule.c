/*
 * Bytes as a rule of users, "pattern -> replacement" after a digit for its condition: refused with a reason, or a rule that ends on its own
 * pattern and that the interpreter can try.
 */
#include "target.h"

#include "ir/user_rule.h"
#include "ir/base/os.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    char text[2 * USER_RULE_TEXT + 8];
    if (n < 1 || n >= sizeof text)
        return 0;
    memcpy(text, bytes, n);
    text[n] = '\0';
    if (strlen(text) < n)
        return 0;
    char *arrow = strstr(text + 1, " -> "), *replacement = arrow ? arrow + 4 : text + n;
    if (arrow)
        *arrow = '\0';
    UserRule *rule = NULL;
    Status status = user_rule_new("r", text + 1, replacement, (Soundness)(*text & 3), RULE_ANY, &rule);
    REQUIRE((status == ST_OK) == (rule != NULL), "%s", status_name(status));
    REQUIRE(status == ST_OK || (status == ST_INVALID && strncmp(fail_message(), "rule \"r\": ", 10) == 0), "%s", fail_message());
    if (!rule)
        return 0;
    const PatternRule *rules[] = {&rule->rule};
    status = user_rule_check_end(rules, 1);
    REQUIRE(status == ST_OK || status == ST_INVALID, "%s: %s", status_name(status), fail_message());
    if (status == ST_OK) {
        status = user_rule_check_values(rule);
        REQUIRE(status == ST_OK || status == ST_INVALID, "%s: %s", status_name(status), fail_message());
    }
    os_free(rule);
    return 0;
}
