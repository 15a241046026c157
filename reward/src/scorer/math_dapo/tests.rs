use proptest::prelude::*;

use super::*;

#[test]
fn every_rule_needs_a_rewritable_character() {
    for rule in SUBSTITUTIONS.iter().chain(REMOVED) {
        assert_ne!(rule.needs & REWRITABLE, 0, "{:?}", rule.from);
    }
    for word in ["$", "\\text{", "\\textbf{", "\\overline{", "\\boxed{", "frac", "sqrt"] {
        assert_ne!(characters(word) & REWRITABLE, 0, "{word:?}");
    }
}

/// The normal form, computed by trying every rule on every text.
fn slowly(answer: &str) -> String {
    let mut text = answer.rsplit('=').next().unwrap().to_owned();
    for rule in SUBSTITUTIONS.iter().chain(REMOVED) {
        text = text.replace(rule.from, rule.to);
    }
    finished(&rewritten_by_scanners(text)).into_owned()
}

fn rewritten_by_scanners(mut text: String) -> String {
    keep_first_formulas(&mut text);
    for opener in ["\\text{", "\\textbf{", "\\overline{"] {
        unwrap_shortest(&mut text, opener);
    }
    unwrap_longest(&mut text, "\\boxed{");
    brace_bare(&mut text, "frac", Bare::Two);
    brace_bare(&mut text, "sqrt", Bare::One);
    text.replace('$', "")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn rules_that_are_skipped_would_change_nothing(
        text in "(a |an |mbox|\\\\text\\{|\\\\text\\{and\\}|,|m\\}|\\}|\\$|\\.|squ|are|sue|un|its|de|grees|[0-9]|[ =^{\"]|é|\\\\|[a-z]){0,24}"
    ) {
        prop_assert_eq!(normalize(&text), slowly(&text));
    }
}
