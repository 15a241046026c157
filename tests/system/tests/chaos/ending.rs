//! The end of the rounds: the queues are emptied, and the records of the system are compared with the account
//! of its clients.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use crate::layout::PARTITION;
use crate::schedule::Part;
use crate::system::{CLOCK_OFFSET_S, PROGRESS_MAX, System};
use crate::until;

impl System {
    /// Waits until no request of the run is on an engine while the clients rest. Fails if a permit was not
    /// returned.
    pub(crate) async fn check_permits(&mut self) {
        self.trainer.rests.store(true, Ordering::Relaxed);
        self.reference.rests.store(true, Ordering::Relaxed);
        let url = format!("http://{}/v1/fleet", self.layout.admin);
        until("return of all permits", PROGRESS_MAX, async || {
            let fleet = self.get(&url).await.unwrap_or_default();
            let servers = fleet["servers"].as_array();
            servers.is_some_and(|servers| servers.iter().all(|server| server["in_use"] == 0))
        })
        .await;
        self.trainer.rests.store(false, Ordering::Relaxed);
        self.reference.rests.store(false, Ordering::Relaxed);
    }

    /// Ends the run, waits until the clients have taken everything, and checks the account.
    pub(crate) async fn finish(mut self) {
        self.check_permits().await;
        self.process(Part::Run).terminate().await;
        self.start_stand_in().await;
        let queues = [self.layout.run_queue, self.layout.queue].map(|at| format!("http://{at}/v1"));
        let emptied = async {
            loop {
                self.supervise(&[]).await;
                let mut rows = 0;
                for queue in &queues {
                    let partition = self.get(&format!("{queue}/partitions/{PARTITION}")).await;
                    rows +=
                        partition.and_then(|partition| partition["rows"].as_u64()).unwrap_or(u64::MAX / 2);
                }
                if rows == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PROGRESS_MAX, emptied).await.is_err() {
            panic!("the queues are not empty after {PROGRESS_MAX:?}\n{}", self.state().await);
        }
        for queue in &queues {
            let report = self.get(&format!("{queue}/verify")).await.unwrap_or_default();
            assert_eq!(report["problems"], json!([]), "{queue}: {report}");
        }
        self.clients.clear();
        self.stand_in.kill();
        for process in self.processes.values_mut() {
            process.kill();
            process.check_log();
        }
        self.check_ledger();
        self.check_directories();
    }

    /// Compares the run's ledger with the account of the clients.
    fn check_ledger(&self) {
        let dir = self.layout.run_dir();
        let output = self.layout.tool(&["ledger", "--json", &dir.to_string_lossy()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let ledger: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(ledger["conservation"], "holds");
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        // If a put was in progress at the end of the run, its group may have found no space in the queue.
        let (accepted, unsettled) = (number(&ledger["totals"]["accepted"]), number(&ledger["not_settled"]));
        let trained = self.audit.trained_count();
        assert!(
            (accepted - unsettled..=accepted).contains(&trained),
            "trained on {trained} groups; the ledger has accepted={accepted}, of these not settled={unsettled}"
        );
        let epochs = number(&ledger["next_number"]).div_ceil(self.layout.prompts());
        let repeats = self.audit.prompt_repeats();
        assert!(repeats <= epochs, "trained on {repeats} groups of one prompt in {epochs} epochs");
        let started_s = ledger["started_s"].as_i64().unwrap();
        assert!(started_s > CLOCK_OFFSET_S, "the run does not read the injected clock: {started_s}");
        eprintln!("trained on {trained} groups in {} lives of the run", ledger["lives"]);
    }

    /// Verifies all directories on disk.
    fn check_directories(&self) {
        let queues = ["queue", "unit-a", "unit-b"].map(|name| self.layout.disk(name));
        for dir in queues.into_iter().chain([self.layout.run_dir()]) {
            let output = self.layout.tool(&["queue", "verify", &dir.to_string_lossy()]);
            let text = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{}: {}", dir.display(), String::from_utf8_lossy(&text));
        }
    }
}
