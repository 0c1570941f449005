//! Stores the futures of requests in reused memory.
//!
//! Most futures of requests take 1 to 3 KiB. glibc's allocator does not cache blocks of this size,
//! so each allocation costs 450 instructions.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::free_list::FreeList;

/// Size of a block in bytes. A larger future is stored in a box of its own, which takes 900
/// instructions more. The future of a FastCGI request is the largest, with somewhat more than 4 KiB.
const BLOCK: usize = 4608;

/// Unused blocks of one thread.
pub type Blocks = FreeList<Box<Block>>;

/// Memory for a future.
#[repr(align(64))]
pub struct Block {
    _bytes: [MaybeUninit<u8>; BLOCK],
}

impl Block {
    fn new() -> Box<Self> {
        Box::new(Self { _bytes: [MaybeUninit::uninit(); BLOCK] })
    }
}

/// A future like `Pin<Box<dyn Future>>`. If the future fits, it is stored in a block.
pub struct Recycled<'a, T>(Storage<'a, T>);

enum Storage<'a, T> {
    Block { future: NonNull<dyn Future<Output = T> + 'a>, block: NonNull<Block>, of: Rc<Blocks> },
    Box(Pin<Box<dyn Future<Output = T> + 'a>>),
}

impl<'a, T> Recycled<'a, T> {
    /// Constructs the future in one of `blocks`, or in a box if the future is too large.
    // The parameter is a constructor instead of the future, because passing a future copies all of
    // its bytes. Few of the bytes are initialized before the first poll.
    pub fn new<F: Future<Output = T> + 'a>(blocks: &Rc<Blocks>, make: impl FnOnce() -> F) -> Self {
        if size_of::<F>() > BLOCK || align_of::<F>() > align_of::<Block>() {
            return Self(Storage::Box(Box::pin(make())));
        }
        let mut block = blocks.take().unwrap_or_else(Block::new);
        let mut place = NonNull::from(&mut *block).cast::<MaybeUninit<F>>();
        // SAFETY: the block is large enough, aligned and exclusively owned. If `make` panics, the
        // block is freed, because it is leaked only below.
        unsafe { place.as_mut() }.write(make());
        let block = NonNull::from(Box::leak(block));
        Self(Storage::Block { future: block.cast::<F>(), block, of: blocks.clone() })
    }
}

impl<T> Future for Recycled<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Storage::Block { future, .. } => {
                // SAFETY: `new` has written the future to the block, where it stays until `drop`.
                // The reference is unique, because `self` is borrowed mutably for as long.
                unsafe { Pin::new_unchecked(future.as_mut()) }.poll(context)
            }
            Storage::Box(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> Drop for Recycled<'_, T> {
    fn drop(&mut self) {
        if let Storage::Block { future, block, of } = &mut self.0 {
            // SAFETY: `new` has written the future, and nothing uses it after this.
            unsafe { future.drop_in_place() };
            // SAFETY: `new` leaked the block from a box, and nothing else refers to it.
            of.give(unsafe { Box::from_raw(block.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Returns the number of unused blocks.
    fn spare(blocks: &Rc<Blocks>) -> usize {
        let free: Vec<_> = std::iter::from_fn(|| blocks.take()).collect();
        let count = free.len();
        free.into_iter().for_each(|block| blocks.give(block));
        count
    }

    #[test]
    fn a_block_is_used_again_when_its_future_has_been_dropped() {
        let blocks = Rc::<Blocks>::default();
        let held = Rc::new(());
        let mut context = Context::from_waker(Waker::noop());
        for n in 0..3 {
            let local = [n; 100];
            let held = held.clone();
            let mut future = Recycled::new(&blocks, || async {
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
    fn values_of_a_future_are_dropped_with_it_anywhere() {
        let blocks = Rc::<Blocks>::default();
        let held = Rc::new(());
        let mut context = Context::from_waker(Waker::noop());
        let of_size = async |held: Rc<()>, bytes: &mut [u8]| {
            tokio::task::yield_now().await;
            bytes[0] = 1;
            drop(held);
        };
        let mut small = [0; 10];
        let mut future = Recycled::new(&blocks, || of_size(held.clone(), &mut small));
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        assert_eq!(Rc::strong_count(&held), 2);
        drop(future);
        assert_eq!((Rc::strong_count(&held), spare(&blocks)), (1, 1));
        let large = held.clone();
        let future = Recycled::new(&blocks, || async move {
            let bytes = [1u8; 2 * BLOCK];
            tokio::task::yield_now().await;
            drop(large);
            bytes[BLOCK]
        });
        assert!(matches!(future.0, Storage::Box(_)));
        drop(future);
        assert_eq!((Rc::strong_count(&held), spare(&blocks)), (1, 1));
    }
}
