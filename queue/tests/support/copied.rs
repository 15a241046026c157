//! Copies of a queue's directory, as a killed process leaves it.

use std::ffi::OsString;
use std::io::Result;
use std::path::Path;
use std::time::SystemTime;

/// The names, lengths and times of change of the files in a directory.
fn files(dir: &Path) -> Result<Vec<(OsString, u64, SystemTime)>> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let file = file?;
        let metadata = file.metadata()?;
        files.push((file.file_name(), metadata.len(), metadata.modified()?));
    }
    files.sort();
    Ok(files)
}

/// The most copies before [`copy_at_one_moment`] gives up.
const COPIES_MAX: usize = 1_000;

/// Copies a directory whose files a writer may still change. Repeats the copy until no file has changed during the
/// copy. Otherwise the copy could have the files of different moments, which no process leaves.
pub(crate) fn copy_at_one_moment(from: &Path, to: &Path) {
    let copy = || {
        let before = files(from)?;
        let _ = std::fs::remove_dir_all(to);
        std::fs::create_dir(to)?;
        let mut is_whole = true;
        for (name, length, _) in &before {
            is_whole &= std::fs::copy(from.join(name), to.join(name))? == *length;
        }
        Result::Ok(is_whole && before == files(from)?)
    };
    // A copy fails if the writer has just removed a file.
    let mut last = copy();
    for _ in 1..COPIES_MAX {
        if matches!(last, Ok(true)) {
            return;
        }
        last = copy();
    }
    assert!(matches!(last, Ok(true)), "no copy of {from:?} at one moment: {last:?}");
}
