//! The system: starts and owns its processes, relays and clients, and reports their progress.
//!
//! ```text
//!   engines A, B <--- run ---> its queue <--- reference worker ---> queue server <--- trainer
//!                      ^                                              |     |            |
//!                      |                                          unit A   unit B        |
//!                      +---------------------- versions ---------------------------------+
//! ```
//!
//! A relay stands on every arrow, with two exceptions. The run and its queue are one process. If unit B has a
//! separate network, no relay stands on the arrow of unit B.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::audit::Audit;
use crate::isolation::{Disk, Machine};
use crate::layout::{LEASE_MS, Layout, PARTITION, QUEUE_ROWS, REFERENCE_COLUMN, SAMPLES, TOKEN, TRAIN_TASK};
use crate::process::Process;
use crate::reference::Reference;
use crate::relay::Relay;
use crate::schedule::{Link, Part};
use crate::trainer::{Trainer, http_client};
use crate::until;

/// Maximum time between the start of a process and its first answer.
const START_MAX: Duration = Duration::from_secs(180);
/// Maximum time in which the system must make progress after the faults have ended.
pub(crate) const PROGRESS_MAX: Duration = Duration::from_secs(90);
/// The initial offset of the run's clock from the clock of the machine, in seconds: about three millennia. The
/// run's records show this offset, so the test can check that the run reads its own clock.
pub(crate) const CLOCK_OFFSET_S: i64 = 100_000_000_000;

/// The whole system.
pub(crate) struct System {
    pub(crate) layout: Arc<Layout>,
    pub(crate) processes: BTreeMap<Part, Process>,
    /// The queue server that serves the run's queue while the run does not serve it.
    pub(crate) stand_in: Process,
    pub(crate) relays: BTreeMap<Link, Vec<Relay>>,
    /// The relays of unit B, if it has no separate machine.
    pub(crate) unit_b_relays: Vec<Relay>,
    /// Disks of a limited size, if the operating system allows the test to mount them.
    pub(crate) disks: BTreeMap<Part, Disk>,
    pub(crate) machine: Option<Machine>,
    pub(crate) trainer: Trainer,
    pub(crate) clock_offset_s: i64,
    pub(crate) reference: Reference,
    pub(crate) clients: BTreeMap<Part, AbortOnDropHandle<()>>,
    pub(crate) audit: Arc<Audit>,
    http: reqwest::Client,
}

/// The relay in front of a unit, and the relay through which the unit reaches its controller.
async fn unit_relays(unit: SocketAddr, controller: SocketAddr) -> Vec<Relay> {
    vec![Relay::before(unit).await, Relay::before(controller).await]
}

impl System {
    /// Starts the whole system. Only a system with namespaces has limited disks and a separate machine for
    /// unit B.
    pub(crate) async fn start(home: &Path, has_namespaces: bool) -> Self {
        let machine = if has_namespaces { Some(Machine::start().await) } else { None };
        let layout = Arc::new(Layout::new(home, machine.as_ref()));
        std::fs::create_dir_all(layout.logs()).unwrap();
        let names = ["run", "queue", "unit-a", "unit-b"];
        let disks: BTreeMap<Part, Disk> = if has_namespaces {
            Part::WRITERS
                .into_iter()
                .zip(names)
                .map(|(part, name)| (part, Disk::mount(&layout.disk(name))))
                .collect()
        } else {
            names.iter().for_each(|name| std::fs::create_dir_all(layout.disk(name)).unwrap());
            BTreeMap::new()
        };
        let mut relays = BTreeMap::new();
        for (link, target) in [
            (Link::EngineA, layout.engine_a),
            (Link::EngineB, layout.engine_b),
            (Link::RunQueue, layout.run_queue),
            (Link::Policy, layout.policy),
            (Link::Queue, layout.queue),
        ] {
            relays.insert(link, vec![Relay::before(target).await]);
        }
        relays.insert(Link::UnitA, unit_relays(layout.unit_a, layout.queue).await);
        let unit_b_relays = match machine {
            Some(_) => Vec::new(),
            None => unit_relays(layout.unit_b, layout.queue).await,
        };
        let url = |link: Link| relays[&link][0].url();
        layout.write_recipe(&[url(Link::EngineA), url(Link::EngineB)]);
        let audit = Arc::<Audit>::default();
        let trainer = Trainer::new(&url(Link::Queue), &url(Link::Policy), Arc::clone(&audit));
        let reference = Reference::new(&url(Link::RunQueue), &url(Link::Queue), Arc::clone(&audit));
        let processes = processes(&layout, &relays[&Link::UnitA], &unit_b_relays, machine.as_ref());
        let at = Arc::clone(&layout);
        let stand_in = Process::new("stand-in", &layout.logs(), move || at.stand_in());
        let mut system = Self {
            layout,
            processes,
            stand_in,
            relays,
            unit_b_relays,
            disks,
            machine,
            trainer,
            clock_offset_s: CLOCK_OFFSET_S,
            reference,
            clients: BTreeMap::new(),
            audit,
            http: http_client(),
        };
        system.set_clock();
        system.launch().await;
        system
    }

    /// Starts each part after the parts that it needs.
    async fn launch(&mut self) {
        self.start_part(Part::Queue).await;
        let spec = json!({
            "name": PARTITION, "tasks": [{ "name": TRAIN_TASK, "columns": [REFERENCE_COLUMN] }],
            "capacity_rows": QUEUE_ROWS, "group_size": SAMPLES, "lease_ms": LEASE_MS,
        });
        let declaring = self.http.post(format!("http://{}/v1/partitions", self.layout.queue));
        let declared = declaring.bearer_auth(TOKEN).json(&spec).send().await.unwrap();
        assert!(declared.status().is_success(), "{}", declared.text().await.unwrap());
        for part in [Part::UnitA, Part::UnitB, Part::EngineA, Part::EngineB, Part::Run] {
            self.start_part(part).await;
        }
        let units = format!("http://{}/v1/units", self.layout.queue);
        until("two live units", START_MAX, async || {
            let units = self.get(&units).await.unwrap_or_default();
            let live = |unit: &&Value| unit["status"] == "live";
            units["units"].as_array().into_iter().flatten().filter(live).count() == 2
        })
        .await;
        self.start_part(Part::Reference).await;
        self.start_part(Part::Trainer).await;
    }

    pub(crate) fn process(&mut self, part: Part) -> &mut Process {
        self.processes.get_mut(&part).unwrap_or_else(|| panic!("{part:?} is no process"))
    }

    /// The URL at which a process answers `GET /health`.
    fn health(&self, part: Part) -> String {
        let address = match part {
            Part::Run => self.layout.run_queue,
            Part::Queue => self.layout.queue,
            Part::UnitA => self.layout.unit_a,
            Part::UnitB => self.layout.unit_b,
            Part::EngineA => self.layout.engine_a,
            Part::EngineB => self.layout.engine_b,
            Part::Reference | Part::Trainer => panic!("{part:?} is no process"),
        };
        format!("http://{address}/health")
    }

    /// Starts a part that does not run. If the part is a process, waits until the process answers.
    pub(crate) async fn start_part(&mut self, part: Part) {
        let tracker = TaskTracker::new();
        let client = match part {
            Part::Trainer => tracker.spawn(self.trainer.clone().train()),
            Part::Reference => tracker.spawn(self.reference.clone().work()),
            _ => {
                self.process(part).start();
                return self.until_healthy(part).await;
            }
        };
        self.clients.insert(part, AbortOnDropHandle::new(client));
    }

    /// Kills a process, or aborts the task of a client, which ends at the next `await` of the task.
    pub(crate) fn kill_part(&mut self, part: Part) {
        match self.clients.remove(&part) {
            Some(client) => drop(client),
            None => self.process(part).kill(),
        }
    }

    async fn until_healthy(&mut self, part: Part) {
        let (url, http) = (self.health(part), self.http.clone());
        until(&format!("answer of {part:?} after its start"), START_MAX, async || {
            let process = self.process(part);
            if let Some(status) = process.ended() {
                panic!("{part:?} ended at its start: {status}\n{}", process.log_end());
            }
            http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success())
        })
        .await;
    }

    /// Starts the queue server that replaces the run.
    pub(crate) async fn start_stand_in(&mut self) {
        self.stand_in.start();
        let (url, http) = (self.health(Part::Run), self.http.clone());
        until("answer of the queue server in the run's place", START_MAX, async || {
            http.get(&url).send().await.is_ok_and(|answer| answer.status().is_success())
        })
        .await;
    }

    /// Writes the offset of the run's clock.
    pub(crate) fn set_clock(&self) {
        std::fs::write(self.layout.clock_file(), self.clock_offset_s.to_string()).unwrap();
    }

    /// Starts every process again that has ended. Panics if the stand-in, a client, or a process that is not in
    /// `may_end` has ended, or if the audit has found violations.
    pub(crate) async fn supervise(&mut self, may_end: &[Part]) {
        for part in Part::PROCESSES {
            let process = self.process(part);
            let Some(status) = process.ended() else { continue };
            process.check_log();
            assert!(may_end.contains(&part), "{part:?} has ended: {status}\n{}", process.log_end());
            eprintln!("  {part:?} has ended by itself: {status}; it is started again");
            self.start_part(part).await;
        }
        assert!(self.stand_in.ended().is_none(), "the stand-in has ended\n{}", self.stand_in.log_end());
        for (part, client) in &self.clients {
            assert!(!client.is_finished(), "{part:?} has ended");
        }
        let violations = self.audit.violations();
        assert!(violations.is_empty(), "violations: {violations:#?}");
    }

    /// Waits until the trainer has trained on `groups` further groups. During this time, only the processes in
    /// `may_end` may end.
    pub(crate) async fn progress(&mut self, groups: usize, may_end: &[Part]) {
        let target = self.audit.trained_count() + groups;
        let going_on = async {
            while self.audit.trained_count() < target {
                self.supervise(may_end).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PROGRESS_MAX, going_on).await.is_err() {
            panic!("no progress by {groups} groups in {PROGRESS_MAX:?}\n{}", self.state().await);
        }
    }

    pub(crate) fn trained(&self) -> usize {
        self.audit.trained_count()
    }

    /// The JSON of the answer to a GET request; `None` if the answer is missing, has an error status or is not
    /// JSON.
    pub(crate) async fn get(&self, url: &str) -> Option<Value> {
        let answer = self.http.get(url).bearer_auth(TOKEN).send().await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }

    /// The state that the parts report, and the ends of the processes' logs, for messages.
    pub(crate) async fn state(&mut self) -> String {
        let at = Arc::clone(&self.layout);
        let mut text = String::new();
        for url in [
            format!("http://{}/v1/inspect", at.run_queue),
            format!("http://{}/v1/policy", at.policy),
            format!("http://{}/v1/fleet", at.admin),
            format!("http://{}/v1/inspect", at.queue),
        ] {
            let said = self.get(&url).await.map_or("no answer".to_owned(), |said| said.to_string());
            text.push_str(&format!("{url}: {said}\n"));
        }
        self.processes.values().for_each(|process| text.push_str(&process.log_end()));
        text
    }
}

/// Makes the command line of a process.
type MakeCommand = Box<dyn Fn(&Layout) -> Command + Send>;

/// Describes the processes without starting them.
fn processes(
    layout: &Arc<Layout>,
    unit_a: &[Relay],
    unit_b: &[Relay],
    machine: Option<&Machine>,
) -> BTreeMap<Part, Process> {
    let logs = layout.logs();
    let process = |part: Part, name, command: MakeCommand| {
        let layout = Arc::clone(layout);
        (part, Process::new(name, &logs, move || command(&layout)))
    };
    let [a_url, a_controller] = [unit_a[0].url(), unit_a[1].url()];
    let unit_a = move |at: &Layout| {
        at.unit(|program| Command::new(program), "unit-a", at.unit_a, &a_controller, &a_url)
    };
    let unit_b: MakeCommand = match machine {
        Some(machine) => {
            let there = machine.command();
            Box::new(move |at: &Layout| {
                let controller = format!("http://{}:{}", Machine::HERE, at.queue.port());
                at.unit(&there, "unit-b", at.unit_b, &controller, &format!("http://{}", at.unit_b))
            })
        }
        None => {
            let [url, controller] = [unit_b[0].url(), unit_b[1].url()];
            Box::new(move |at: &Layout| {
                at.unit(|program| Command::new(program), "unit-b", at.unit_b, &controller, &url)
            })
        }
    };
    BTreeMap::from([
        process(Part::Run, "run", Box::new(Layout::run)),
        process(Part::Queue, "queue", Box::new(Layout::queue_server)),
        process(Part::UnitA, "unit-a", Box::new(unit_a)),
        process(Part::UnitB, "unit-b", unit_b),
        process(Part::EngineA, "engine-a", Box::new(|at: &Layout| at.engine(at.engine_a))),
        process(Part::EngineB, "engine-b", Box::new(|at: &Layout| at.engine(at.engine_b))),
    ])
}
