//! Rewrites the messages of the TOML parser and of serde for authors of recipes.

/// A whole number that TOML cannot represent.
pub(super) const HUGE: &str = "the number does not fit into 64 bits; expected a whole number from \
                               -9223372036854775808 to 9223372036854775807";

/// Whether `text` is a whole number in decimal digits that TOML cannot represent.
pub(super) fn is_huge(text: &str) -> bool {
    let digits = text.trim_start_matches(['+', '-']);
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
        && digits.chars().all(|letter| letter.is_ascii_digit() || letter == '_');
    is_number && text.replace('_', "").parse::<i64>().is_err()
}

/// The text between `start` and the next backtick.
pub(super) fn quoted_after(message: &str, start: &str) -> Option<String> {
    let rest = message.split_once(start)?.1;
    Some(rest.split_once('`')?.0.to_owned())
}

/// Adds a suggestion to the message: the most similar of the names that serde lists. If exactly one name has
/// the wrong name as one of its words, that name is suggested. Otherwise the name with the smallest edit
/// distance is suggested, if this distance is small.
pub(super) fn with_suggestion(message: &str) -> String {
    let Some((head, expected)) = message.split_once("expected ") else { return message.to_owned() };
    let Some(wrong) = quoted_after(head, "`") else { return message.to_owned() };
    let names = || expected.split('`').skip(1).step_by(2);
    let mut longer = names().filter(|name| name.split('_').any(|word| word == wrong));
    let nearest = match (longer.next(), longer.next()) {
        (Some(only), None) => Some(only),
        _ => {
            let nearest = names().map(|name| (distance(&wrong, name), name)).min();
            nearest.filter(|(steps, _)| *steps <= 1 + wrong.len() / 4).map(|(_, name)| name)
        }
    };
    nearest.map_or(message.to_owned(), |name| format!("{message}; did you mean `{name}`?"))
}

/// The Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.chars().enumerate() {
            let substituted = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}

/// Replaces names of Rust types in a parser's message with plain words.
pub(super) fn in_plain_words(message: &str) -> String {
    let message = message.replacen("invalid type: sequence,", "invalid type: a list,", 1).replacen(
        "invalid type: map,",
        "invalid type: a table,",
        1,
    );
    let Some((found, expected)) = message.rsplit_once("expected ") else { return message };
    // A number of the right type that is too small or too large.
    let is_out_of_range = found.starts_with("invalid value: integer");
    let words = match expected {
        "u8" if is_out_of_range => "a whole number from 0 to 255",
        "u16" if is_out_of_range => "a whole number from 0 to 65535",
        "u32" if is_out_of_range => "a whole number from 0 to 4294967295",
        "i32" if is_out_of_range => "a whole number from -2147483648 to 2147483647",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "a table",
        "a boolean" => "true or false",
        "string or table" => "a string",
        _ if expected.starts_with("struct ") => "a table",
        other => other,
    };
    format!("{found}expected {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rust_types_are_replaced_in_messages() {
        for (message, words) in [
            (
                "invalid type: integer `3`, expected struct Rollout",
                "invalid type: integer `3`, expected a table",
            ),
            (
                "invalid length 2, expected struct Rollout with 18 elements",
                "invalid length 2, expected a table",
            ),
            ("invalid type: sequence, expected a map", "invalid type: a list, expected a table"),
            ("invalid type: map, expected a string", "invalid type: a table, expected a string"),
            (
                "invalid value: integer `5000000000`, expected u32",
                "invalid value: integer `5000000000`, expected a whole number from 0 to 4294967295",
            ),
            (
                "invalid type: string \"x\", expected u32",
                "invalid type: string \"x\", expected a whole number, 0 or more",
            ),
            ("something else", "something else"),
        ] {
            assert_eq!(in_plain_words(message), words);
        }
    }

    #[test]
    fn a_suggestion_that_contains_the_wrong_word_is_preferred() {
        let wrong = |word: &str| {
            format!("unknown variant `{word}`, expected one of `sync`, `one_step_off`, `fully_async`")
        };
        assert!(with_suggestion(&wrong("async")).ends_with("did you mean `fully_async`?"));
        assert!(with_suggestion(&wrong("sinc")).ends_with("did you mean `sync`?"));
        assert!(!with_suggestion(&wrong("whatever")).contains("did you mean"));
        let several = "unknown field `batch`, expected `train_batch`, `gen_batch`";
        assert_eq!(with_suggestion(several), several, "either could be meant");
    }

    #[test]
    fn huge_integers_are_recognised() {
        for text in [
            "9223372036854775808",
            "-9223372036854775809",
            "99_999_999_999_999_999_999",
            "+99999999999999999999",
        ] {
            assert!(is_huge(text), "{text}");
        }
        for text in ["9223372036854775807", "-1", "0", "1e300", "many", "1.5", "-", "_1", "2024-01-01"] {
            assert!(!is_huge(text), "{text}");
        }
    }
}
