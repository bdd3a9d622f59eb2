//! Cuts the heaps of a table into ranges of physical position for several readers (K-20).
//!
//! A pure function of what the catalog says about sizes. Knows nothing of readers at work, attempts
//! or rows.

use core::cmp::Reverse;
use std::collections::VecDeque;

use crate::config::{COPY_RANGE_BYTES, COPY_RANGES_MAX, COPY_RANGES_PER_READER};
use crate::ids::TableId;
use crate::source::{BlockRange, HeapFacts};

/// A part of one heap, read by one COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRange {
    pub(crate) relation: TableId,
    pub(crate) blocks: BlockRange,
}

/// What one attempt reads, and with how many connections.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Largest first, so that the last ones to end are short.
    pub(crate) ranges: VecDeque<CopyRange>,
    /// At least 1, never more than ranges.
    pub(crate) readers: u32,
}

/// Cuts `heaps` for at most `connections` readers. Every block of every heap lies in exactly one
/// range; the last one of each heap is open, so that it holds what the heap grows by, too.
pub(crate) fn cut(heaps: &[HeapFacts], connections: u64) -> Plan {
    let total: u64 = heaps.iter().map(|heap| heap.bytes).fold(0, u64::saturating_add);
    let wanted = connections.min(readers_worthwhile(total)).max(1);
    let alone = |readers| Plan { ranges: order(heaps, |_| 1), readers };
    if wanted == 1 {
        return alone(1);
    }
    let target = total
        .div_ceil(COPY_RANGE_BYTES)
        .max(wanted.saturating_mul(COPY_RANGES_PER_READER))
        .min(COPY_RANGES_MAX);
    // Each heap has one range, however small it is; the rest is shared out by bytes, rounded down,
    // so that the sum never exceeds the target.
    let spare = u128::from(target.saturating_sub(heaps.len() as u64));
    let ranges = order(heaps, |heap| {
        let share = u128::from(heap.bytes) * spare / u128::from(total.max(1));
        let most = u64::from(heap.blocks.max(1));
        u64::try_from(share).unwrap_or(u64::MAX).saturating_add(1).min(most)
    });
    let readers = u32::try_from(wanted.min(ranges.len() as u64)).unwrap_or(u32::MAX);
    // What is too short for a second reader is not worth its cuts either.
    if readers <= 1 { alone(1) } else { Plan { ranges, readers } }
}

/// A connection costs more than it saves before it has so many bytes to read.
const fn readers_worthwhile(bytes: u64) -> u64 {
    bytes.div_ceil(COPY_RANGE_BYTES / COPY_RANGES_PER_READER)
}

fn order(heaps: &[HeapFacts], count: impl Fn(&HeapFacts) -> u64) -> VecDeque<CopyRange> {
    let mut all = Vec::new();
    for heap in heaps {
        let count = count(heap);
        let bytes = heap.bytes / count;
        all.extend((0..count).map(|index| (bytes, range(heap, index, count))));
    }
    // Stable: ranges of one size stay in the order of the heap.
    all.sort_by_key(|(bytes, _)| Reverse(*bytes));
    all.into_iter().map(|(_, range)| range).collect()
}

fn range(heap: &HeapFacts, index: u64, count: u64) -> CopyRange {
    // At most `blocks`, so it always fits.
    let at = |index: u64| u32::try_from(u64::from(heap.blocks) * index / count).unwrap_or(u32::MAX);
    let end = (index + 1 < count).then(|| at(index + 1));
    CopyRange { relation: heap.relation, blocks: BlockRange { first: at(index), end } }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BLOCK: u64 = 8_192;
    const MIB: u64 = 1 << 20;

    fn heap(relation: u32, blocks: u32, toast: u64) -> HeapFacts {
        HeapFacts {
            relation: TableId(relation),
            filenode_in_snapshot: 1,
            filenode_now: 1,
            columns_in_snapshot: Vec::new(),
            columns_now: Vec::new(),
            bytes: u64::from(blocks) * BLOCK + toast,
            blocks,
        }
    }

    fn whole(heap: &HeapFacts) -> CopyRange {
        CopyRange { relation: heap.relation, blocks: BlockRange::ALL }
    }

    // K-20: one range per relation if there is one reader
    #[test]
    fn one_connection_reads_each_heap_at_once_the_largest_first() {
        let heaps = [heap(1, 10, 0), heap(2, 1_000_000, 0), heap(3, 0, 0)];
        let plan = cut(&heaps, 1);
        assert_eq!(plan.readers, 1);
        assert_eq!(plan.ranges, [whole(&heaps[1]), whole(&heaps[0]), whole(&heaps[2])]);
    }

    // K-20: about 64 MiB each, at least 4 per reader, at most 1,024
    #[test]
    fn the_number_of_ranges_follows_the_bytes() {
        let blocks = |mib: u64| u32::try_from(mib * MIB / BLOCK).unwrap();
        let plan = |mib| {
            let plan = cut(&[heap(1, blocks(mib), 0)], 4);
            (plan.readers, plan.ranges.len())
        };
        assert_eq!(plan(1), (1, 1), "too small for a second connection");
        assert_eq!(plan(64), (4, 16), "four for each reader");
        assert_eq!(plan(2_048), (4, 32), "64 MiB each");
        assert_eq!(plan(1_000_000), (4, 1_024));
    }

    // K-20: bytes of TOAST count, blocks of the heap bound
    #[test]
    fn a_heap_of_few_blocks_and_much_toast_has_no_more_ranges_than_blocks() {
        let plan = cut(&[heap(1, 3, 10_000 * MIB)], 8);
        assert_eq!((plan.readers, plan.ranges.len()), (3, 3));
        let plan = cut(&[heap(1, 1, 10_000 * MIB)], 8);
        assert_eq!((plan.readers, plan.ranges.len()), (1, 1));
    }

    #[test]
    fn nothing_to_read_needs_one_reader_for_the_lock() {
        assert_eq!(cut(&[], 4), Plan { ranges: VecDeque::new(), readers: 1 });
    }

    fn heaps() -> impl Strategy<Value = Vec<HeapFacts>> {
        let one = (prop_oneof![0_u32..3, 0_u32..100_000, Just(u32::MAX)], 0_u64..1 << 40);
        proptest::collection::vec(one, 0..40).prop_map(|sizes| {
            (1..).zip(sizes).map(|(number, (blocks, toast))| heap(number, blocks, toast)).collect()
        })
    }

    proptest! {
        // K-20, K-I5: every block in exactly one range, also those behind the end
        #[test]
        fn every_block_lies_in_exactly_one_range(heaps in heaps(), connections in 1_u64..33) {
            let plan = cut(&heaps, connections);
            for heap in &heaps {
                let mut parts: Vec<_> = plan
                    .ranges
                    .iter()
                    .filter(|range| range.relation == heap.relation)
                    .map(|range| range.blocks)
                    .collect();
                parts.sort();
                prop_assert_eq!(parts.first().map(|part| part.first), Some(0));
                for pair in parts.windows(2) {
                    prop_assert_eq!(pair[0].end, Some(pair[1].first));
                    prop_assert!(pair[0].first < pair[1].first, "an empty range");
                }
                prop_assert_eq!(parts.last().and_then(|part| part.end), None);
                prop_assert!(parts.len() as u64 <= u64::from(heap.blocks.max(1)));
            }
        }

        // K-20: the bounds
        #[test]
        fn neither_ranges_nor_readers_exceed_their_bounds(
            heaps in heaps(), connections in 1_u64..33,
        ) {
            let plan = cut(&heaps, connections);
            prop_assert!(plan.ranges.len() as u64 <= COPY_RANGES_MAX);
            prop_assert!(u64::from(plan.readers) <= connections);
            prop_assert!(plan.readers as usize <= plan.ranges.len().max(1));
            if plan.readers == 1 {
                prop_assert_eq!(plan.ranges.len(), heaps.len());
            }
        }

        // K-20: in their order, no range has more bytes than the one before
        #[test]
        fn the_largest_come_first(heaps in heaps(), connections in 1_u64..33) {
            let plan = cut(&heaps, connections);
            let mut counts = BTreeMap::new();
            for range in &plan.ranges {
                *counts.entry(range.relation).or_insert(0_u64) += 1;
            }
            let size = |heap: &HeapFacts| (heap.relation, heap.bytes / counts[&heap.relation]);
            let size: BTreeMap<_, _> = heaps.iter().map(size).collect();
            let sizes: Vec<_> = plan.ranges.iter().map(|range| size[&range.relation]).collect();
            prop_assert!(sizes.is_sorted_by(|a, b| a >= b));
        }
    }
}
