//! Whose turn it is at the destination (DS-02): at most `lanes_max` lanes work at a time; beyond
//! that number lanes take turns, so that neither main nor a copy starves.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::Lane;

#[derive(Debug)]
pub(crate) struct Turns {
    lanes_max: usize,
    /// Operations in flight of each lane that has any.
    active: BTreeMap<Lane, u32>,
    /// Lanes that asked in vain, in the order in which they asked.
    waiting: VecDeque<Lane>,
}

impl Turns {
    pub(crate) fn new(lanes_max: u32) -> Self {
        let lanes_max = usize::try_from(lanes_max).unwrap_or(usize::MAX).max(1);
        Self { lanes_max, active: BTreeMap::new(), waiting: VecDeque::new() }
    }

    /// Takes a turn for one operation of `lane`, or queues the lane for one.
    pub(crate) fn enter(&mut self, lane: Lane) -> bool {
        let free = self.lanes_max.saturating_sub(self.active.len());
        let ahead = self.waiting.iter().take_while(|&&other| other != lane).count();
        let granted = if self.active.contains_key(&lane) { ahead <= free } else { ahead < free };
        if granted {
            self.waiting.retain(|&other| other != lane);
            *self.active.entry(lane).or_default() += 1;
        } else if !self.waiting.contains(&lane) && !self.active.contains_key(&lane) {
            self.waiting.push_back(lane);
        }
        granted
    }

    /// Gives one operation's turn back.
    pub(crate) fn leave(&mut self, lane: Lane) {
        if let Some(count) = self.active.get_mut(&lane) {
            *count -= 1;
            if *count == 0 {
                self.active.remove(&lane);
            }
        }
    }

    /// The lane wants nothing any more.
    pub(crate) fn forget(&mut self, lane: Lane) {
        self.waiting.retain(|&other| other != lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TableId;

    const A: Lane = Lane::Table(TableId(1));
    const B: Lane = Lane::Table(TableId(2));

    // DS-02
    #[test]
    fn a_lane_that_overlaps_its_calls_gives_way_to_one_that_waits() {
        let mut turns = Turns::new(1);
        assert!(turns.enter(A));
        assert!(turns.enter(A), "alone it may overlap");
        assert!(!turns.enter(Lane::Main));
        assert!(!turns.enter(A), "main waits");
        turns.leave(A);
        assert!(!turns.enter(Lane::Main), "one call of A is still running");
        turns.leave(A);
        assert!(!turns.enter(A), "main asked first");
        assert!(turns.enter(Lane::Main));
        turns.leave(Lane::Main);
        assert!(turns.enter(A));
    }

    #[test]
    fn waiting_lanes_are_served_in_the_order_in_which_they_asked() {
        let mut turns = Turns::new(2);
        assert!(turns.enter(Lane::Main) && turns.enter(A));
        assert!(!turns.enter(B));
        assert!(!turns.enter(Lane::Table(TableId(3))));
        turns.leave(A);
        assert!(!turns.enter(Lane::Table(TableId(3))), "B asked first");
        turns.forget(B);
        assert!(turns.enter(Lane::Table(TableId(3))));
    }

    proptest::proptest! {
        // DS-02: never too many lanes; a lane that keeps asking is served before others twice
        #[test]
        fn lanes_take_turns(
            lanes_max in 1_u32..4, order in proptest::collection::vec(0_u32..5, 1..200),
        ) {
            let mut turns = Turns::new(lanes_max);
            let mut active: VecDeque<Lane> = VecDeque::new();
            let mut since_served = [0_usize; 5];
            for number in order {
                // One lane ends its call, then all ask, beginning with any of them.
                if active.len() == lanes_max as usize
                    && let Some(lane) = active.pop_front()
                {
                    turns.leave(lane);
                }
                for lane in (number..number + 5).map(|n| n % 5) {
                    let id = Lane::Table(TableId(lane));
                    if !active.contains(&id) && turns.enter(id) {
                        active.push_back(id);
                        since_served.iter_mut().for_each(|waited| *waited += 1);
                        since_served[lane as usize] = 0;
                    }
                }
                proptest::prop_assert!(active.len() <= lanes_max as usize);
                proptest::prop_assert!(since_served.iter().all(|waited| *waited <= 10));
            }
        }
    }
}
