//! Recipes that were installed with the binary.
//!
//! An installation has `bin/rolldock` and `share/rolldock`. The folder `share/rolldock` has `recipes/` and
//! `data/arithmetic`. The Python wheel installs both `bin` and `share`, so a recipe that needs no other data,
//! such as `recipes/quickstart.toml`, runs from any directory.

use std::path::{Path, PathBuf};

/// Returns the recipe that a command line names: the file itself, or, if it does not exist and its path is
/// relative, the installed recipe of this path.
pub(super) fn recipe(named: PathBuf) -> PathBuf {
    let binary = std::env::current_exe().ok();
    binary.as_deref().and_then(|binary| installed(binary, &named)).unwrap_or(named)
}

fn installed(binary: &Path, named: &Path) -> Option<PathBuf> {
    if named.is_absolute() || named.exists() {
        return None;
    }
    let file = binary.parent()?.parent()?.join("share").join("rolldock").join(named);
    file.exists().then_some(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_recipe_that_is_not_at_its_path_is_looked_for_in_the_installation() {
        let prefix = tempfile::tempdir().unwrap();
        let binary = prefix.path().join("bin").join("rolldock");
        let recipes = prefix.path().join("share").join("rolldock").join("recipes");
        fs::create_dir_all(&recipes).unwrap();
        let installed_file = recipes.join("only-installed.toml");
        fs::write(&installed_file, "").unwrap();

        let named = Path::new("recipes/only-installed.toml");
        assert_eq!(installed(&binary, named), Some(installed_file.clone()));
        assert_eq!(installed(&binary, Path::new("recipes/nowhere.toml")), None);
        assert_eq!(installed(&binary, &installed_file), None, "an absolute path names itself");
        // Tests run in the folder of their crate.
        assert_eq!(installed(&binary, Path::new("Cargo.toml")), None, "a file that exists goes first");
    }
}
