//! Response tokens by bucket, as text.

use rolldock_dispatch::TokenTotals;

use super::numbers::{grouped, share};

/// The tokens of a step or of a run by bucket. Accepted, filtered and wasted tokens are always named, and
/// other buckets only if they are not empty. Wasted tokens are followed by their share and their reasons.
pub fn token_words(tokens: &TokenTotals) -> String {
    let mut parts = Vec::new();
    let mut reasons = Vec::new();
    for (name, count) in tokens.buckets() {
        let words = format!("{} {}", grouped(count), name.trim_start_matches("wasted_").replace('_', " "));
        if name.starts_with("wasted_") {
            reasons.extend((count > 0).then_some(words));
        } else if count > 0 || matches!(name, "accepted" | "filtered") {
            parts.push(words);
        }
    }
    let wasted = tokens.wasted.total();
    let share = share(wasted, tokens.generated + tokens.earlier);
    let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) };
    parts.push(format!("{} wasted ({share}{why})", grouped(wasted)));
    let earlier = match tokens.earlier {
        0 => String::new(),
        earlier => format!(" and {} of earlier steps", grouped(earlier)),
    };
    let estimated = match tokens.estimated {
        0 => String::new(),
        estimated => format!("; {} of them are an estimate", grouped(estimated)),
    };
    format!("{} generated{earlier}: {}{estimated}", grouped(tokens.generated), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use rolldock_dispatch::WastedTokens;

    use super::*;

    #[test]
    fn only_counts_above_zero_are_named() {
        let none = "0 generated: 0 accepted, 0 filtered, 0 wasted (-)";
        assert_eq!(token_words(&TokenTotals::default()), none);
        let wasted = WastedTokens { cut: 1_500, lost_answer: 500, ..WastedTokens::default() };
        let tokens = TokenTotals {
            generated: 9_000,
            earlier: 1_000,
            accepted: 7_000,
            held: 1_000,
            wasted,
            estimated: 20,
            ..TokenTotals::default()
        };
        let words = "9,000 generated and 1,000 of earlier steps: 7,000 accepted, 0 filtered, 1,000 held, \
                     2,000 wasted (20.0 %: 1,500 cut, 500 lost answer); 20 of them are an estimate";
        assert_eq!(token_words(&tokens), words);
    }
}
