//! What the fronts of one thread share: the thread, its table of sites, and exchanges for reuse.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use crate::exchange::Exchange;
use crate::route::Table;
use crate::stream::Stream;
use crate::thread::Thread;

/// Exchanges kept for reuse; more are under way only in a burst.
const SPARE_EXCHANGES: usize = 64;

/// The context of the fronts of one thread.
pub struct FrontContext {
    /// The thread.
    pub thread: Rc<Thread>,
    table: RefCell<Rc<Table>>,
    #[expect(
        clippy::vec_box,
        reason = "an exchange moves between here and connections by pointer"
    )]
    spare: RefCell<Vec<Box<Exchange>>>,
}

impl FrontContext {
    /// Requests are answered by the sites of `table`.
    pub fn new(thread: Rc<Thread>, table: Table) -> Self {
        Self { thread, table: RefCell::new(Rc::new(table)), spare: RefCell::default() }
    }

    /// The sites behind each listener, as they are now.
    pub fn table(&self) -> Ref<'_, Rc<Table>> {
        self.table.borrow()
    }

    /// From now on requests are answered by the sites of another table. Those under way hold on to
    /// the site that they were given.
    pub fn replace_table(&self, mut table: Table) {
        table.keep_leaving(&self.table.borrow());
        let old = self.table.replace(Rc::new(table));
        drop(old);
    }

    /// An exchange for `stream`, which is given back by [`Self::keep_exchange`].
    pub fn take_exchange(&self, stream: &Stream) -> Box<Exchange> {
        match self.spare.borrow_mut().pop() {
            Some(mut exchange) => {
                exchange.attach(stream);
                exchange
            }
            None => Box::new(Exchange::new(stream)),
        }
    }

    /// Takes an exchange back that has ended.
    pub fn keep_exchange(&self, mut exchange: Box<Exchange>) {
        exchange.detach();
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_EXCHANGES {
            spare.push(exchange);
        }
    }
}
