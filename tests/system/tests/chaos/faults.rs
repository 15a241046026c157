//! What each fault does, and how it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::Signal;

use crate::relay::{Passage, Relay};
use crate::schedule::{Fault, Link, Part, Round};
use crate::system::System;

impl System {
    /// Applies the faults of a round, lets the system run for the round's time, and ends the faults.
    /// Processes that a fault may end have a supervisor, which starts them again.
    pub(crate) async fn suffer(&mut self, round: &Round) {
        for fault in &round.faults {
            self.begin(*fault).await;
        }
        tokio::time::sleep(Duration::from_millis(round.hold_ms)).await;
        // The end of a fault may start the run while one of the run's engines does not answer yet.
        for fault in &round.faults {
            self.end(*fault).await;
        }
        self.supervise(&round.may_end()).await;
    }

    async fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(part) => self.kill_part(part),
            Fault::Stop(part) => self.process(part).signal(Signal::STOP),
            Fault::FillDisk(part) => match self.disks.get(&part) {
                Some(disk) => disk.fill(),
                None => eprintln!("  skipped: the disk of {part:?} cannot be limited without namespaces"),
            },
            Fault::TakeDescriptors(part) => self.process(part).take_descriptors(),
            Fault::Cut(link) => self.relays[&link].iter().for_each(Relay::cut),
            Fault::Delay(link, ms) => {
                let late = Passage::Late(Duration::from_millis(ms));
                self.relays[&link].iter().for_each(|relay| relay.set(late));
            }
            Fault::Partition(unit) => self.connect(unit, false),
            Fault::StepClock(seconds) => {
                self.clock_offset_s += seconds;
                self.set_clock();
                self.kill_part(Part::Run);
            }
            Fault::StandIn => {
                self.process(Part::Run).terminate().await;
                self.start_stand_in().await;
            }
            Fault::Dawdle => self.trainer.dawdles.store(true, Ordering::Relaxed),
        }
    }

    async fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Kill(part) => self.start_part(part).await,
            Fault::Stop(part) => self.process(part).signal(Signal::CONT),
            Fault::FillDisk(part) => {
                if let Some(disk) = self.disks.get(&part) {
                    disk.clear();
                }
            }
            Fault::TakeDescriptors(part) => self.process(part).give_descriptors(),
            Fault::Cut(link) => self.relays[&link].iter().for_each(Relay::cut),
            Fault::Delay(link, _) => self.relays[&link].iter().for_each(|relay| relay.set(Passage::Open)),
            Fault::Partition(unit) => self.connect(unit, true),
            Fault::StepClock(_) => self.start_part(Part::Run).await,
            Fault::StandIn => {
                self.stand_in.kill();
                self.start_part(Part::Run).await;
            }
            Fault::Dawdle => {}
        }
    }

    /// Connects a unit with the queue server and its clients, or disconnects it.
    fn connect(&self, unit: Part, joins: bool) {
        let relays = match (unit, &self.machine) {
            (Part::UnitB, Some(machine)) => return machine.plug(joins),
            (Part::UnitB, None) => &self.unit_b_relays,
            _ => &self.relays[&Link::UnitA],
        };
        let passage = if joins { Passage::Open } else { Passage::Blocked };
        relays.iter().for_each(|relay| relay.set(passage));
    }
}
