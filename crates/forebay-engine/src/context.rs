//! What the fronts of one thread share: the thread, its table of sites, and exchanges for reuse.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use crate::exchange::Exchange;
use crate::free_list::FreeList;
use crate::route::Table;
use crate::stream::Stream;
use crate::thread::Thread;

/// The context of the fronts of one thread.
pub struct FrontContext {
    /// The thread.
    pub thread: Rc<Thread>,
    table: RefCell<Rc<Table>>,
    exchanges: Rc<FreeList<Box<Exchange>>>,
}

impl FrontContext {
    /// Requests are answered by the sites of `table`.
    pub fn new(thread: Rc<Thread>, table: Table) -> Self {
        let exchanges = thread.free_list();
        Self { thread, table: RefCell::new(Rc::new(table)), exchanges }
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
        self.thread.changed.notify_waiters();
    }

    /// An exchange for `stream`, which is given back by [`Self::keep_exchange`].
    pub fn take_exchange(&self, stream: &Stream) -> Box<Exchange> {
        match self.exchanges.take() {
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
        self.exchanges.give(exchange);
    }
}
