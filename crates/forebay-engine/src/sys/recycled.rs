//! Futures of requests, in memory that is used again. A request's futures have 1 to 3 KiB, which the
//! allocator of glibc does not keep at hand: 450 instructions for each.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Size of a block, in bytes. A larger future has a box of its own.
const BLOCK: usize = 4096;
/// Blocks kept for reuse.
const SPARE: usize = 64;

/// Blocks of memory that no future is in, of one thread.
#[derive(Default)]
pub struct Blocks(RefCell<Vec<NonNull<Block>>>);

#[repr(align(64))]
struct Block {
    _bytes: [MaybeUninit<u8>; BLOCK],
}

impl Blocks {
    fn take(&self) -> NonNull<Block> {
        let spare = self.0.borrow_mut().pop();
        spare.unwrap_or_else(|| {
            let block = Box::new(Block { _bytes: [MaybeUninit::uninit(); BLOCK] });
            NonNull::from(Box::leak(block))
        })
    }

    fn give_back(&self, block: NonNull<Block>) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < SPARE {
            spare.push(block);
        } else {
            // SAFETY: `take` leaked it from a box, and nobody else has it any more.
            drop(unsafe { Box::from_raw(block.as_ptr()) });
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.0.get_mut().drain(..) {
            // SAFETY: `take` leaked it from a box, and nobody else has what is spare.
            drop(unsafe { Box::from_raw(block.as_ptr()) });
        }
    }
}

/// A future as in `Pin<Box<dyn Future>>`, in a block where it fits.
pub struct Recycled<'a, T>(Place<'a, T>);

enum Place<'a, T> {
    Block { future: NonNull<dyn Future<Output = T> + 'a>, block: NonNull<Block>, of: Rc<Blocks> },
    Box(Pin<Box<dyn Future<Output = T> + 'a>>),
}

impl<'a, T> Recycled<'a, T> {
    /// Puts `future` into one of `blocks`.
    pub fn new<F: Future<Output = T> + 'a>(blocks: &Rc<Blocks>, future: F) -> Self {
        if size_of::<F>() > BLOCK || align_of::<F>() > align_of::<Block>() {
            return Self(Place::Box(Box::pin(future)));
        }
        let block = blocks.take();
        let place = block.cast::<F>();
        // SAFETY: the block is large enough, aligned, and nobody else's until `drop` gives it back.
        unsafe { place.write(future) };
        Self(Place::Block { future: place, block, of: blocks.clone() })
    }
}

impl<T> Future for Recycled<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            // SAFETY: `new` has put it there, and it stays until `drop`: it does not move. The
            // reference is the only one, as `self` is borrowed for as long.
            Place::Block { future, .. } => {
                unsafe { Pin::new_unchecked(future.as_mut()) }.poll(context)
            }
            Place::Box(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> Drop for Recycled<'_, T> {
    fn drop(&mut self) {
        if let Place::Block { future, block, of } = &mut self.0 {
            // SAFETY: it is there since `new`, and nobody looks at it after this.
            unsafe { future.drop_in_place() };
            of.give_back(*block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn spare(blocks: &Rc<Blocks>) -> usize {
        blocks.0.borrow().len()
    }

    #[test]
    fn a_block_is_used_again_when_its_future_has_been_dropped() {
        let blocks = Rc::<Blocks>::default();
        let held = Rc::new(());
        let mut context = Context::from_waker(Waker::noop());
        for n in 0..3 {
            let local = [n; 100];
            let held = held.clone();
            let mut future = Recycled::new(&blocks, async {
                tokio::task::yield_now().await;
                local.iter().sum::<i32>() + Rc::strong_count(&held) as i32
            });
            assert_eq!(spare(&blocks), 0);
            assert!(Pin::new(&mut future).poll(&mut context).is_pending());
            assert_eq!(Pin::new(&mut future).poll(&mut context), Poll::Ready(n * 100 + 2));
            drop(future);
            assert_eq!(spare(&blocks), 1);
        }
    }

    #[test]
    fn what_a_future_holds_is_dropped_with_it_wherever_it_is() {
        let blocks = Rc::<Blocks>::default();
        let held = Rc::new(());
        let mut context = Context::from_waker(Waker::noop());
        let of_size = async |held: Rc<()>, bytes: &mut [u8]| {
            tokio::task::yield_now().await;
            bytes[0] = 1;
            drop(held);
        };
        let mut small = [0; 10];
        let mut future = Recycled::new(&blocks, of_size(held.clone(), &mut small));
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        assert_eq!(Rc::strong_count(&held), 2);
        drop(future);
        assert_eq!((Rc::strong_count(&held), spare(&blocks)), (1, 1));
        let large = held.clone();
        let future = Recycled::new(&blocks, async move {
            let bytes = [1u8; 2 * BLOCK];
            tokio::task::yield_now().await;
            drop(large);
            bytes[BLOCK]
        });
        assert!(matches!(future.0, Place::Box(_)));
        drop(future);
        assert_eq!((Rc::strong_count(&held), spare(&blocks)), (1, 1));
    }

    #[test]
    fn no_more_blocks_are_kept_than_a_burst_is_worth() {
        let blocks = Rc::<Blocks>::default();
        let futures: Vec<_> =
            (0..2 * SPARE).map(|n| Recycled::new(&blocks, async move { n })).collect();
        drop(futures);
        assert_eq!(spare(&blocks), SPARE);
    }
}
