//! The settings of a sweep: all combinations of the values of several keys.

/// Short names of keys, and the keys for which they stand.
const SHORT_KEYS: [(&str, &str); 2] =
    [("fleet.servers", "fleet.simulated.servers"), ("fleet.speeds", "fleet.simulated.speeds")];

/// Maximum number of settings of a sweep.
pub const SETTINGS_MAX: usize = 1024;

/// The reason why a sweep cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// The text is not a key with values.
    #[error("--sweep {text}: expected KEY=VALUE,VALUE,..., for example rollout.workers=4,8")]
    Form {
        /// The text.
        text: String,
    },
    /// A key occurs twice.
    #[error("--sweep {key}: the key is swept twice; expected all of its values in one list")]
    Twice {
        /// The key.
        key: String,
    },
    /// Two keys name the same key, or one of them names a table with the other.
    #[error("--sweep {key}: --sweep {before} sweeps this key, too; expected keys without a key in common")]
    Overlap {
        /// The later key, as the user wrote it.
        key: String,
        /// The earlier key, as the user wrote it.
        before: String,
    },
    /// There are too many combinations.
    #[error("--sweep {key}: expected at most {SETTINGS_MAX} combinations of values; this key makes more")]
    TooMany {
        /// The first key with which there are too many.
        key: String,
    },
}

/// A key of a recipe with one of its values, as in `--set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key, as the user wrote it.
    pub key: String,
    /// The value, as TOML or as a bare word.
    pub value: String,
}

/// The values of the swept keys, for people. Empty without a sweep.
pub fn label(changes: &[Change]) -> String {
    let words: Vec<String> =
        changes.iter().map(|change| format!("{}={}", change.key, change.value)).collect();
    words.join(" ")
}

/// The key without the spaces and quotes that TOML allows around its parts.
fn plain(key: &str) -> String {
    let quotes = |letter| matches!(letter, '"' | '\'');
    let parts: Vec<&str> = key.split('.').map(|part| part.trim().trim_matches(quotes)).collect();
    parts.join(".")
}

/// The key for which the short name `key` stands. `None` if it is no short name.
pub fn stands_for(key: &str) -> Option<&'static str> {
    let key = plain(key);
    SHORT_KEYS.iter().find(|(short, _)| *short == key).map(|(_, whole)| *whole)
}

/// The key of the recipe that `key` names, without spaces and quotes.
pub fn whole_key(key: &str) -> String {
    stands_for(key).map_or_else(|| plain(key), str::to_owned)
}

/// Whether the keys are the same, or one of them is a table with the other.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (whole_key(one), whole_key(other));
    one.split('.').zip(other.split('.')).all(|(one, other)| one == other)
}

/// A swept key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Swept {
    key: String,
    values: Vec<String>,
}

impl Swept {
    fn parse(text: &str) -> Result<Self, SweepError> {
        let wrong = || SweepError::Form { text: text.to_owned() };
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let values = split(values);
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// Splits values at the commas that are not inside brackets, braces or quotes.
fn split(text: &str) -> Vec<String> {
    let (mut values, mut value) = (Vec::new(), String::new());
    let (mut depth, mut quote) = (0_usize, None);
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(letter),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                values.push(std::mem::take(&mut value).trim().to_owned());
                continue;
            }
            (None, _) => {}
        }
        value.push(letter);
    }
    values.push(value.trim().to_owned());
    values
}

/// All combinations of the swept values, the last key changing fastest. Without a sweep there is one
/// combination without changes.
///
/// # Errors
/// A [`SweepError`] that names the key.
pub fn combinations(sweeps: &[String]) -> Result<Vec<Vec<Change>>, SweepError> {
    let mut combinations: Vec<Vec<Change>> = vec![Vec::new()];
    for text in sweeps {
        let Swept { key, values } = Swept::parse(text)?;
        if combinations.iter().flatten().any(|change| change.key == key) {
            return Err(SweepError::Twice { key });
        }
        if let Some(before) = combinations.iter().flatten().find(|change| overlap(&change.key, &key)) {
            return Err(SweepError::Overlap { before: before.key.clone(), key });
        }
        if combinations.len().saturating_mul(values.len()) > SETTINGS_MAX {
            return Err(SweepError::TooMany { key });
        }
        let with = |before: &Vec<Change>, value: &String| {
            let change = Change { key: key.clone(), value: value.clone() };
            before.iter().cloned().chain([change]).collect()
        };
        combinations = combinations
            .iter()
            .flat_map(|before| values.iter().map(move |value| with(before, value)))
            .collect();
    }
    Ok(combinations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(sweeps: &[&str]) -> Result<Vec<String>, SweepError> {
        let sweeps: Vec<String> = sweeps.iter().map(|text| (*text).to_owned()).collect();
        let words = |changes: &Vec<Change>| {
            changes.iter().map(|change| format!("{}={}", change.key, change.value)).collect::<Vec<_>>()
        };
        Ok(combinations(&sweeps)?.iter().map(|changes| words(changes).join(" ")).collect())
    }

    #[test]
    fn a_sweep_is_the_product_of_its_values() {
        assert_eq!(words(&[]).unwrap(), [""]);
        assert_eq!(
            words(&["a.b=1, 2", "c=x,y"]).unwrap(),
            ["a.b=1 c=x", "a.b=1 c=y", "a.b=2 c=x", "a.b=2 c=y"]
        );
        let lists = words(&["fleet.speeds=[1, 0.5],[1]", "d=\"a,b\",c"]).unwrap();
        assert_eq!(lists.len(), 4);
        assert_eq!(lists[0], "fleet.speeds=[1, 0.5] d=\"a,b\"");
    }

    #[test]
    fn a_short_key_stands_for_the_key_of_the_simulated_fleet() {
        assert_eq!(whole_key("fleet.servers"), "fleet.simulated.servers");
        assert_eq!(whole_key("fleet . \"speeds\""), "fleet.simulated.speeds");
        assert_eq!(whole_key("fleet.servers_min"), "fleet.servers_min");
    }

    #[test]
    fn keys_with_a_key_in_common_are_refused() {
        for (before, key) in [
            ("fleet.servers", "fleet.simulated.servers"),
            ("fleet.simulated.speeds", "fleet.speeds"),
            ("rollout", "rollout.workers"),
            ("rollout.workers", "rollout"),
            ("fleet", "fleet.servers"),
            ("rollout.workers", "rollout.'workers'"),
        ] {
            let expected = SweepError::Overlap { key: key.to_owned(), before: before.to_owned() };
            let swept = words(&[&format!("{before}=1,2"), "model.name=a,b", &format!("{key}=3,4")]);
            assert_eq!(swept, Err(expected));
        }
        assert_eq!(words(&["fleet.servers=1,2", "fleet.servers_min=1"]).unwrap().len(), 2);
    }

    #[test]
    fn a_wrong_sweep_names_its_key() {
        for text in ["a", "=1", "a=1,,2", "a="] {
            assert_eq!(words(&[text]), Err(SweepError::Form { text: text.to_owned() }));
        }
        assert_eq!(words(&["a=1", "a=2"]), Err(SweepError::Twice { key: "a".to_owned() }));
        let many = format!("b={}", (0..600).map(|value| value.to_string()).collect::<Vec<_>>().join(","));
        assert_eq!(words(&["a=1,2", &many]), Err(SweepError::TooMany { key: "b".to_owned() }));
    }
}
