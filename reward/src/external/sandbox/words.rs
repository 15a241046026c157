//! The command line and the environment of a run.
//!
//! All is done by commands that Linux hosts have, in this order: `setsid` takes the terminal away, `bwrap` or `unshare`
//! make the namespaces, `setpriv` gives up rights, `prlimit` sets limits, and then comes the interpreter. Each replaces
//! the one before it or waits for nothing but the next one.
//!
//! In namespaces a candidate sees the system's directories, its interpreter and what the recipe names, all read-only,
//! its program, a private `/proc` and a few devices. It may write in `/work`, `/tmp` and `/dev/shm`: they live in memory,
//! have a size each, and go with the namespace.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::interpreter::Interpreter;
use super::place::{PROGRAM, Place};
use super::{Level, Limits};

/// Where the commands are.
pub(super) const TOOLS_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The variable by which a candidate's processes can be told.
pub(super) const MARK: &str = "ROLLDOCK_CANDIDATE";
/// Rights of `root` that nothing started from here will have.
const NO_RIGHTS: &str = "--inh-caps=-all --bounding-set=-all";
/// Lets a namespace of users have none below it: in one of its own a candidate could mount memory without a limit.
const LOCK: &str = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
/// Puts a root directory together.
const NAMESPACES: &str = include_str!("namespaces.sh");
/// Directories of the system, or links into [`USR`].
const SYSTEM: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
const USR: &str = "/usr";
/// Files of the system that interpreters and their libraries need.
const SYSTEM_FILES: [&str; 3] = ["/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"];
/// Where candidates run.
const WORK: &str = "/work";
/// Where they may write as well.
const TMP: &str = "/tmp";
/// Open files of a process.
const FILES_MAX: u32 = 256;

/// What is the same for all runs on this host.
#[derive(Debug)]
pub(super) struct Cage {
    pub(super) level: Level,
    /// Whether this process may do what it likes, and candidates get users of their own.
    pub(super) is_privileged: bool,
    /// Whether candidates can make no namespaces of users.
    pub(super) is_locked: bool,
    pub(super) interpreter: Interpreter,
    pub(super) readable: Vec<PathBuf>,
    pub(super) limits: Limits,
}

/// Something at a path of the sandbox.
enum Seen {
    Bind { from: PathBuf, at: PathBuf },
    Link { to: PathBuf, at: PathBuf },
}

impl Cage {
    /// The words before the interpreter's own. `processes` is the limit as the kernel shall count it.
    pub(super) fn words(&self, place: &Place, processes: usize) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["setsid".into()];
        match self.level {
            Level::Bubblewrap => words.extend(self.bubblewrap(place)),
            Level::Namespaces => words.extend(self.namespaces(place)),
            Level::Limits => {}
        }
        words.extend(self.fewer_rights(place));
        words.extend(self.prlimit(processes));
        words.push(self.interpreter.executable.clone().into());
        words
    }

    /// The program as the candidate's processes find it.
    pub(super) fn program(&self) -> &'static str {
        match self.level {
            Level::Bubblewrap | Level::Namespaces => "/candidate.py",
            // From the directory of a run, so that no name of the host's is needed.
            Level::Limits => "../candidate.py",
        }
    }

    /// The whole environment; `work` is the directory of the run on the host.
    pub(super) fn environment(&self, work: &Path, mark: &str) -> Vec<(&'static str, OsString)> {
        let home: OsString = match self.level {
            Level::Bubblewrap | Level::Namespaces => WORK.into(),
            Level::Limits => work.into(),
        };
        let fixed = [
            ("PATH", TOOLS_PATH),
            ("LANG", "C.UTF-8"),
            ("PYTHONUTF8", "1"),
            ("PYTHONDONTWRITEBYTECODE", "1"),
            // Sets in the same order every time.
            ("PYTHONHASHSEED", "0"),
            // Libraries otherwise start a thread for each core, and every thread has an arena of address space.
            ("OMP_NUM_THREADS", "1"),
            ("OPENBLAS_NUM_THREADS", "1"),
            ("MALLOC_ARENA_MAX", "2"),
            (MARK, mark),
        ];
        let homes = [("HOME", home.clone()), ("TMPDIR", home)];
        fixed.into_iter().map(|(name, value)| (name, OsString::from(value))).chain(homes).collect()
    }

    fn bubblewrap(&self, place: &Place) -> Vec<OsString> {
        let mut words = Words::of(&[
            "bwrap --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try",
            "--die-with-parent --cap-drop ALL",
        ]);
        match self.is_privileged {
            // For the change of users, which ends in having none.
            true => words.split("--cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_SETPCAP"),
            false => words.split("--unshare-user"),
        }
        if self.is_locked {
            words.split("--disable-userns");
        }
        for at in [WORK, TMP] {
            words.split(&self.memory_at(at));
        }
        let seen = self.seen(place);
        // Directories that come about by themselves are closed to other users.
        let parents: BTreeSet<&Path> = seen
            .iter()
            .flat_map(|seen| seen.at().ancestors().skip(1))
            .filter(|path| *path != Path::new("/"))
            .collect();
        let is_bound = |path: &Path| seen.iter().any(|seen| path.starts_with(seen.at()));
        for parent in parents.into_iter().filter(|path| !is_bound(path)) {
            words.split("--perms 0755 --dir");
            words.push(parent);
        }
        for seen in &seen {
            let (word, what) = match seen {
                Seen::Bind { from, .. } => ("--ro-bind", from),
                Seen::Link { to, .. } => ("--symlink", to),
            };
            words.push(word);
            words.push(what);
            words.push(seen.at());
        }
        words.split("--proc /proc --dev /dev");
        words.split(&self.memory_at("/dev/shm"));
        words.split(&format!("--remount-ro /dev --remount-ro / --chdir {WORK} --"));
        words.0
    }

    fn memory_at(&self, path: &str) -> String {
        format!("--size {} --perms 1777 --tmpfs {path}", self.limits.file_bytes)
    }

    fn namespaces(&self, place: &Place) -> Vec<OsString> {
        // The shell that is the first process dies with `unshare`, and that one with this process.
        let mut words = Words::of(&["setpriv --pdeathsig KILL unshare"]);
        if !self.is_privileged {
            words.split("--user --map-root-user");
        }
        words.split("--mount --pid --net --ipc --uts --cgroup --fork --kill-child sh -c");
        words.push(NAMESPACES);
        words.push("namespaces.sh");
        words.push(place.root());
        words.push(self.limits.file_bytes.to_string());
        for seen in self.seen(place) {
            let (word, what) = match &seen {
                Seen::Bind { from, .. } => ("bind", from),
                Seen::Link { to, .. } => ("link", to),
            };
            words.push(word);
            words.push(what);
            words.push(seen.at());
        }
        words.push("--");
        words.0
    }

    fn fewer_rights(&self, place: &Place) -> Vec<OsString> {
        let mut words = Words::of(&["setpriv --no-new-privs"]);
        if let Some(user) = place.user() {
            words.split(&format!("--reuid {user} --regid {user} --clear-groups {NO_RIGHTS}"));
        }
        match self.level {
            Level::Limits => words.split("--pdeathsig KILL"),
            Level::Namespaces => {
                if self.is_privileged && self.is_locked {
                    words.split("unshare --user --map-root-user");
                }
                if self.is_locked {
                    words.split("sh -c");
                    words.push(LOCK);
                    words.push("lock");
                }
                words.split("setpriv --no-new-privs");
                words.split(NO_RIGHTS);
            }
            Level::Bubblewrap => {}
        }
        words.0
    }

    fn prlimit(&self, processes: usize) -> Vec<OsString> {
        let Limits { time, memory_bytes, file_bytes, .. } = self.limits;
        // A little more than the limit of time, which is the one that shall decide.
        let processor_s = time.as_secs().saturating_add(2);
        Words::of(&[&format!(
            "prlimit --core=0 --as={memory_bytes} --fsize={file_bytes} --nproc={processes} \
             --nofile={FILES_MAX} --cpu={processor_s}"
        )])
        .0
    }

    /// What is to be seen in a sandbox, in an order in which it can be put there.
    fn seen(&self, place: &Place) -> Vec<Seen> {
        let same = |path: &Path| Seen::Bind { from: path.to_owned(), at: path.to_owned() };
        let mut seen = vec![same(Path::new(USR))];
        for path in SYSTEM.map(Path::new) {
            match std::fs::read_link(path) {
                Ok(to) => seen.push(Seen::Link { to, at: path.to_owned() }),
                Err(_) if path.is_dir() => seen.push(same(path)),
                Err(_) => {}
            }
        }
        seen.extend(SYSTEM_FILES.map(Path::new).into_iter().filter(|path| path.exists()).map(same));
        seen.extend(self.interpreter.parts.iter().map(|path| same(path)));
        seen.extend(self.readable.iter().map(|path| same(path)));
        seen.push(Seen::Bind { from: place.program().to_owned(), at: Path::new("/").join(PROGRAM) });
        seen
    }
}

impl Seen {
    fn at(&self) -> &Path {
        match self {
            Self::Bind { at, .. } | Self::Link { at, .. } => at,
        }
    }
}

/// Words of a command line.
struct Words(Vec<OsString>);

impl Words {
    fn of(lines: &[&str]) -> Self {
        let mut words = Self(Vec::new());
        lines.iter().for_each(|line| words.split(line));
        words
    }

    /// Several words that have no blanks within.
    fn split(&mut self, line: &str) {
        self.0.extend(line.split_whitespace().map(OsString::from));
    }

    fn push(&mut self, word: impl AsRef<OsStr>) {
        self.0.push(word.as_ref().to_owned());
    }
}
