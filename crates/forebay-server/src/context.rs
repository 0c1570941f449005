//! State that the client connections of one thread share: the thread, its table of sites, and
//! reusable exchanges.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use forebay_net::free_list::FreeList;
use forebay_net::thread::Thread;

use crate::exchange::Exchange;
use crate::route::Table;
use crate::stream::Stream;

/// Shared state of the client connections of one thread.
pub struct FrontContext {
    /// The thread.
    pub thread: Rc<Thread>,
    table: RefCell<Rc<Table>>,
    exchanges: Rc<FreeList<Box<Exchange>>>,
}

impl FrontContext {
    /// Creates a context that answers requests with the sites of `table`.
    pub fn new(thread: Rc<Thread>, table: Table) -> Self {
        let exchanges = thread.free_list();
        Self { thread, table: RefCell::new(Rc::new(table)), exchanges }
    }

    /// Returns the current sites of each listener.
    pub fn table(&self) -> Ref<'_, Rc<Table>> {
        self.table.borrow()
    }

    /// Replaces the sites for later requests. Current requests keep their site.
    pub fn replace_table(&self, mut table: Table) {
        table.keep_leaving(&self.table.borrow());
        let old = self.table.replace(Rc::new(table));
        drop(old);
        self.thread.changed.notify_waiters();
    }

    /// Returns an exchange for `stream`. Pass the exchange to [`Self::keep_exchange`] after use.
    pub fn take_exchange(&self, stream: &Stream) -> Box<Exchange> {
        match self.exchanges.take() {
            Some(mut exchange) => {
                exchange.attach(stream);
                exchange
            }
            None => Box::new(Exchange::new(stream)),
        }
    }

    /// Stores an exchange for reuse.
    pub fn keep_exchange(&self, mut exchange: Box<Exchange>) {
        exchange.detach();
        self.exchanges.give(exchange);
    }
}
