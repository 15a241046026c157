//! The command line and the environment of a run.
//!
//! The command line is a chain of commands that Linux hosts have. `setsid` detaches the terminal, `bwrap` or
//! `unshare` makes the namespaces, `setpriv` gives up privileges, and `prlimit` sets limits. The last command
//! is the interpreter. Each command either replaces itself by the next command, or starts the next command
//! and only waits for it.
//!
//! In namespaces a candidate sees the system's directories, its interpreter, its program and the paths that
//! the recipe names, all read-only. It also sees a private `/proc` and a few devices. It may write to
//! `/work`, `/tmp` and `/dev/shm`. Each of these is in memory, has a size limit and is deleted with the
//! namespace.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::interpreter::Interpreter;
use super::place::{PROGRAM, Place};
use super::view::{Seen, View, Words};
use super::{Level, Limits, TOOLS_PATH};

/// The variable that marks a candidate's processes.
pub(super) const MARK: &str = "ROLLDOCK_CANDIDATE";
/// Removes all capabilities of `root` from the processes that follow.
const NO_RIGHTS: &str = "--inh-caps=-all --bounding-set=-all";
/// Forbids further user namespaces: a candidate could mount memory without a limit in its own user namespace.
const LOCK: &str = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
/// The script that builds a root directory.
const NAMESPACES: &str = include_str!("namespaces.sh");
/// The working directory of candidates.
const WORK: &str = "/work";
/// The second directory that candidates may write to.
const TMP: &str = "/tmp";
/// Maximum number of open files of a process.
const FILES_MAX: u32 = 256;

/// The settings that all runs of a sandbox share.
#[derive(Debug)]
pub(super) struct Cage {
    pub(super) level: Level,
    /// Whether this process runs as `root`, so that candidates get users of their own.
    pub(super) is_privileged: bool,
    /// Whether candidates are prevented from creating user namespaces.
    pub(super) is_locked: bool,
    pub(super) interpreter: Interpreter,
    pub(super) readable: Vec<PathBuf>,
    pub(super) limits: Limits,
}

impl Cage {
    /// The command line up to the interpreter. `processes` is the limit that the kernel enforces.
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

    /// The path of the program inside the sandbox.
    pub(super) fn program(&self) -> &'static str {
        match self.level {
            Level::Bubblewrap | Level::Namespaces => "/candidate.py",
            // The path is relative to the directory of a run, so that it does not name a path of the host.
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
            // Makes the order of Python's sets reproducible.
            ("PYTHONHASHSEED", "0"),
            // By default libraries start a thread for each core, and every thread takes an arena of address
            // space.
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
            // `setpriv` needs these capabilities to change the user, and then drops them.
            true => words.split("--cap-add CAP_SETUID --cap-add CAP_SETGID --cap-add CAP_SETPCAP"),
            false => words.split("--unshare-user"),
        }
        if self.is_locked {
            words.split("--disable-userns");
        }
        words.0.extend(self.view(place).bubblewrap(&[WORK, TMP], self.limits.file_bytes));
        words.split(&format!("--chdir {WORK} --"));
        words.0
    }

    fn namespaces(&self, place: &Place) -> Vec<OsString> {
        // The shell, which is the first process of the namespace, dies with `unshare`, and `unshare` dies
        // with this process.
        let mut words = Words::of(&["setpriv --pdeathsig KILL unshare"]);
        if !self.is_privileged {
            words.split("--user --map-root-user");
        }
        words.split("--mount --pid --net --ipc --uts --cgroup --fork --kill-child sh -c");
        words.push(NAMESPACES);
        words.push("namespaces.sh");
        words.push(place.root());
        words.push(self.limits.file_bytes.to_string());
        for seen in self.view(place).paths() {
            let (word, what) = match seen {
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
        // This limit is slightly above the wall-clock limit. The wall-clock limit should take effect first.
        let processor_s = time.as_secs().saturating_add(2);
        Words::of(&[&format!(
            "prlimit --core=0 --as={memory_bytes} --fsize={file_bytes} --nproc={processes} \
             --nofile={FILES_MAX} --cpu={processor_s}"
        )])
        .0
    }

    fn view(&self, place: &Place) -> View {
        let mut view = View::of_system();
        self.interpreter.parts.iter().chain(&self.readable).for_each(|path| view.show(path));
        view.bind(place.program(), Path::new("/").join(PROGRAM));
        view
    }
}
