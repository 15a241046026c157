//! What a process sees in a sandbox: paths of the host, all read-only, and directories in memory.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Directories of the system; on many hosts they are links into [`USR`].
const SYSTEM: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
const USR: &str = "/usr";
/// System files that interpreters and their libraries need.
const SYSTEM_FILES: [&str; 3] = ["/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"];
/// The directory of shared memory.
const SHM: &str = "/dev/shm";

/// A path that is visible inside the sandbox.
#[derive(Debug, Clone)]
pub(in crate::external) enum Seen {
    /// The path `from` of the host.
    Bind { from: PathBuf, at: PathBuf },
    /// A symbolic link.
    Link { to: PathBuf, at: PathBuf },
}

/// The paths that are visible in a sandbox, in an order in which they can be mounted.
#[derive(Debug, Clone)]
pub(in crate::external) struct View(Vec<Seen>);

impl View {
    /// The directories of the system.
    pub(in crate::external) fn of_system() -> Self {
        let mut view = Self(Vec::new());
        view.show(USR);
        for path in SYSTEM.map(Path::new) {
            match std::fs::read_link(path) {
                Ok(to) => view.0.push(Seen::Link { to, at: path.to_owned() }),
                Err(_) if path.is_dir() => view.show(path),
                Err(_) => {}
            }
        }
        view.show_existing(&SYSTEM_FILES);
        view
    }

    /// Adds a path of the host.
    pub(in crate::external) fn show(&mut self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        self.bind(path, path);
    }

    /// Adds the given paths that exist on the host.
    pub(in crate::external) fn show_existing(&mut self, paths: &[&str]) {
        paths.iter().filter(|path| Path::new(path).exists()).for_each(|path| self.show(path));
    }

    /// Adds the path `from` of the host, at the path `at` of the sandbox.
    pub(in crate::external) fn bind(&mut self, from: impl AsRef<Path>, at: impl AsRef<Path>) {
        self.0.push(Seen::Bind { from: from.as_ref().to_owned(), at: at.as_ref().to_owned() });
    }

    pub(super) fn paths(&self) -> &[Seen] {
        &self.0
    }

    /// The arguments of `bwrap` that make this view. The directories `writable` and `/dev/shm` are in memory,
    /// and each has at most `bytes` bytes.
    pub(in crate::external) fn bubblewrap(&self, writable: &[&str], bytes: u64) -> Vec<OsString> {
        let mut words = Words::default();
        let memory_at = |path: &str| format!("--size {bytes} --perms 1777 --tmpfs {path}");
        writable.iter().for_each(|at| words.split(&memory_at(at)));
        // Directories that `bwrap` creates implicitly are closed to other users, so they are created here.
        let parents: BTreeSet<&Path> = self
            .0
            .iter()
            .flat_map(|seen| seen.at().ancestors().skip(1))
            .filter(|path| *path != Path::new("/"))
            .collect();
        let is_bound = |path: &Path| self.0.iter().any(|seen| path.starts_with(seen.at()));
        for parent in parents.into_iter().filter(|path| !is_bound(path)) {
            words.split("--perms 0755 --dir");
            words.push(parent);
        }
        for seen in &self.0 {
            let (word, what) = match seen {
                Seen::Bind { from, .. } => ("--ro-bind", from),
                Seen::Link { to, .. } => ("--symlink", to),
            };
            words.push(word);
            words.push(what);
            words.push(seen.at());
        }
        words.split("--proc /proc --dev /dev");
        words.split(&memory_at(SHM));
        words.split("--remount-ro /dev --remount-ro /");
        words.0
    }
}

impl Seen {
    pub(super) fn at(&self) -> &Path {
        match self {
            Self::Bind { at, .. } | Self::Link { at, .. } => at,
        }
    }
}

/// The words of a command line.
#[derive(Debug, Default)]
pub(in crate::external) struct Words(pub(in crate::external) Vec<OsString>);

impl Words {
    pub(in crate::external) fn of(lines: &[&str]) -> Self {
        let mut words = Self::default();
        lines.iter().for_each(|line| words.split(line));
        words
    }

    /// Splits `line` at white space and appends its words.
    pub(in crate::external) fn split(&mut self, line: &str) {
        self.0.extend(line.split_whitespace().map(OsString::from));
    }

    /// Appends one word.
    pub(in crate::external) fn push(&mut self, word: impl AsRef<OsStr>) {
        self.0.push(word.as_ref().to_owned());
    }
}
