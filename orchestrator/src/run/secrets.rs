//! The record of the secrets that a run was given. The run's directory stores their keys and never their
//! values. The keys show whether a run whose listeners had tokens is resumed without these tokens.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::directory::write_whole;
use crate::recipe::Recipe;

/// The file with the keys, inside a run's directory.
const SECRETS_FILE: &str = "secrets.toml";

const ABOUT: &str =
    "# The secrets that this run was given, without their values. To resume the run, give them again.\n";

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Given {
    /// The keys in the recipe.
    keys: BTreeSet<String>,
}

/// Returns the keys of the secrets that `recipe` needs and lacks, although the run in `out` was given them.
/// The directory of an older version has no record of secrets. In that case no key is returned.
///
/// # Errors
/// Returns an error if the record cannot be read.
pub fn missing_secrets(out: &Path, recipe: &Recipe) -> anyhow::Result<Vec<&'static str>> {
    let given = given(out)?;
    Ok(recipe.absent_secrets().into_iter().filter(|key| given.contains(*key)).collect())
}

/// Adds the keys of the secrets of `recipe` to the record of the run in `out`.
pub(super) fn record_secrets(out: &Path, recipe: &Recipe) -> anyhow::Result<()> {
    let mut keys = given(out)?;
    keys.extend(recipe.secrets().into_iter().map(str::to_owned));
    if keys.is_empty() {
        return Ok(());
    }
    write_whole(&out.join(SECRETS_FILE), &format!("{ABOUT}{}", toml::to_string(&Given { keys })?))
}

fn given(out: &Path) -> anyhow::Result<BTreeSet<String>> {
    let file = out.join(SECRETS_FILE);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        read => read.with_context(|| format!("cannot read {}", file.display()))?,
    };
    let given: Given = toml::from_str(&text).with_context(|| {
        format!(
            "{} is damaged; expected the keys of the run's secrets: keys = [\"queue.token\"]",
            file.display()
        )
    })?;
    Ok(given.keys)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::recipe::LoadOptions;

    /// The minimal recipe, which the tests of the recipe crate use too.
    const MINIMAL: &str = include_str!("../../recipe/src/tests/minimal.toml");
    const ASYNC: &str = "policy.mode=fully_async";
    const LISTENS: &str = "queue.listen=127.0.0.1:0";

    fn recipe(dir: &TempDir, set: &[&str]) -> Recipe {
        let file = dir.path().join("given.toml");
        fs::write(&file, MINIMAL).unwrap();
        let set = [ASYNC].iter().chain(set).map(|set| (*set).to_owned()).collect();
        Recipe::load(&file, &LoadOptions { set, endpoints: Vec::new() }).unwrap()
    }

    #[test]
    fn a_needed_secret_of_an_earlier_process_is_reported_as_missing() {
        let dir = TempDir::new().unwrap();
        let out = dir.path();
        let open = recipe(&dir, &[LISTENS]);
        assert!(missing_secrets(out, &open).unwrap().is_empty(), "an older directory has no record");
        record_secrets(out, &open).unwrap();
        assert!(!out.join(SECRETS_FILE).exists(), "no secret was given");

        record_secrets(out, &recipe(&dir, &[LISTENS, "queue.token=hush"])).unwrap();
        record_secrets(out, &recipe(&dir, &["policy.token=hush"])).unwrap();
        let text = fs::read_to_string(out.join(SECRETS_FILE)).unwrap();
        assert!(
            text.ends_with("keys = [\"policy.token\", \"queue.token\"]\n") && !text.contains("hush"),
            "{text}"
        );
        assert_eq!(missing_secrets(out, &open).unwrap(), ["queue.token"]);
        assert!(
            missing_secrets(out, &recipe(&dir, &[])).unwrap().is_empty(),
            "the queue does not listen, so it needs no token"
        );
        assert!(missing_secrets(out, &recipe(&dir, &[LISTENS, "queue.token=other"])).unwrap().is_empty());
    }

    #[test]
    fn a_damaged_record_is_an_error() {
        let dir = TempDir::new().unwrap();
        for damaged in ["", "keys = [", "keys = 3\n"] {
            fs::write(dir.path().join(SECRETS_FILE), damaged).unwrap();
            let error = missing_secrets(dir.path(), &recipe(&dir, &[LISTENS])).unwrap_err();
            assert!(error.to_string().contains("secrets.toml is damaged; expected the keys"), "{error}");
        }
    }
}
