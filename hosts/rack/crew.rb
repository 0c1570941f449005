# The threads of rack.rb, which run the requests.
module Forebay
  # At most one thread leads: it waits for all connections, and reads the requests that have
  # arrived. Then it runs them, one after the other. So Ruby's global lock does not change hands
  # while requests only compute.
  #
  # A request may block. Another thread then has to run the remaining requests, or to lead. To see
  # this, one resting thread (the watcher) wakes every 5 ms, and then needs the global lock. If it
  # gets the lock while a request runs, this request has given the lock up: it blocks, or has run
  # for a time slice of Ruby (100 ms). After a request that blocks, each request wakes a resting
  # thread at once, until MANY requests in a row have not blocked. So a request that blocks delays
  # others by at most 5 ms, and only if the MANY requests before it did not block.
  class Crew
    # Seconds between two looks of the watcher.
    PAUSE = 0.005
    # Seconds after which Ruby takes the global lock away from a thread that computes.
    SLICE = 0.1
    # Number of requests that wake a thread at once, after one that has blocked.
    MANY = 256
    # Seconds between two attempts to start a thread, after one that failed.
    RETRY = 1
    # Under load, the leader reads at most so many times from only the connections that were just
    # answered. Then it selects from all connections.
    MOST_TRIES = 16

    # `failed` is called after a thread could not be started. The caller then calls `retry_start`
    # every `RETRY` seconds, as long as `lacks_thread?` returns true.
    def initialize(threads, failed)
      @lock, @wake = Mutex.new, ConditionVariable.new
      @open = {}.compare_by_identity       # all connections
      @waiting = {}.compare_by_identity    # connections without a request
      @ready = []                          # those with a request, in order of arrival
      @answered = []                       # those that were answered since the leader's last look
      @tries = 0
      @roused_at = 0.0
      @resting = @running = 0              # numbers of threads
      @alert = 0                           # so many requests still wake a thread at once
      @taken = @seen = 0                   # number of requests, now and at the watcher's last look
      @is_led = @is_stopping = @is_watched = false
      @is_roused = false                   # a thread was woken, but does not run yet
      @is_crowded = false                  # several requests have arrived at once
      @nudges, @nudge = IO.pipe            # wakes the leader
      @is_nudged = false
      @most, @threads = threads, []
      @failed, @lacks_thread = failed, false
      @lock.synchronize { @threads << start }
    end

    # Adds a new connection.
    def add(connection)
      @lock.synchronize do
        @open[connection] = true
        watch(connection)
      end
    end

    def forget(connection)
      @open.delete(connection)
    end

    def lacks_thread?
      @lacks_thread
    end

    # Starts a thread, if all threads have work or have ended.
    def retry_start
      @lock.synchronize do
        @threads << start if @resting.zero? && @threads.size < @most && !@is_stopping
        @lacks_thread = false
      end
    rescue ThreadError
      nil    # the next attempt follows
    end

    # Closes the idle connections, and returns after the running requests.
    def stop
      @lock.synchronize do
        @is_stopping = true
        @wake.broadcast
        nudge
      end
      @threads.each(&:join)
    end

    # Closes the sockets in a child, which has only the thread that has forked.
    def leave
      @open.each_key(&:leave)
    end

    private

    def start
      Thread.new { work }
    end

    def work
      @lock.synchronize { @is_roused = false }
      connection = nil
      while (connection = take(connection))
        is_running = true
        connection = nil unless connection.answer
        is_running = false
        @lock.synchronize { @running -= 1 }
      end
    ensure
      @lock.synchronize { @running -= 1 } if is_running
      # An application can end its thread.
      replace_thread unless @is_stopping
    end

    def replace_thread
      @lock.synchronize do
        @threads.delete(Thread.current)
        @threads << start
      end
    rescue ThreadError => error
      start_failed(error)
    end

    def start_failed(error)    # too many threads or processes
      Forebay.log("cannot start a thread: #{error.message}") unless @lacks_thread
      @lacks_thread = true
      @failed.call
    end

    # Returns the next connection with a request; nil if the process stops. `done` is the connection
    # of this thread's last request, if it can carry another one.
    def take(done)
      @lock.synchronize do
        if done
          @answered << done
          watch(done)
        end
        is_sliced = false
        while @is_led || @ready.empty?
          if @is_led
            is_sliced = rest
          elsif @is_stopping
            receive(@waiting.keys)    # a last time
            return close_waiting if @ready.empty?
          else
            lead
          end
        end
        begin_request(is_sliced)
        @ready.shift
      end
    end

    # `is_sliced`: this thread waited for the global lock for a time slice. So the running request
    # computes, and has not blocked.
    def begin_request(is_sliced)
      if @running.positive? && !is_sliced
        @alert = MANY
      elsif @alert.positive?
        @alert -= 1
      end
      @running += 1
      @taken += 1
      rouse unless @is_watched && @alert.zero?
    end

    def watch(connection)
      @waiting[connection] = true
      nudge if @is_led
    end

    # Waits for requests, without holding the crew's lock.
    def lead
      @is_led = true
      answered, @answered = @answered, []
      # Under load, the answered connections already have their next requests. `select` would give up
      # the global lock.
      receive(answered) if @is_crowded && (@tries += 1) <= MOST_TRIES
      receive(select(@waiting.keys)) if @ready.empty?
      @is_crowded = @ready.size > 1
    ensure
      @is_led = false
    end

    def select(connections)
      connections << @nudges
      @tries = 0
      @lock.unlock
      begin
        ready, = IO.select(connections)
      ensure
        @lock.lock
      end
      if ready.last.equal?(@nudges)
        ready.pop
        @nudges.read_nonblock(64, exception: false)
        @is_nudged = false
      end
      ready
    end

    # Moves connections that have a request to @ready, and closes those at their end.
    def receive(connections)
      connections.each do |connection|
        case connection.receive
        when :request then @ready << connection
        when :end then connection.close
        else next
        end
        @waiting.delete(connection)
      end
    end

    # Wakes or starts a thread, unless another one is about to run.
    def rouse
      return if @is_roused
      if @resting.positive?
        @wake.signal
      elsif @threads.size < @most && !@lacks_thread
        @threads << start
      else
        return
      end
      @is_roused = true
      @roused_at = now
    rescue ThreadError => error
      start_failed(error)
    end

    # Waits until this thread may be needed. Returns true if the thread then waited for the global
    # lock for a time slice or longer.
    def rest
      watches = !@is_watched && @alert.zero? && @taken != @seen
      @is_watched, @seen = true, @taken if watches
      @resting += 1
      since = now + PAUSE
      @wake.wait(@lock, watches ? PAUSE : nil)
      now - (watches ? since : @roused_at) >= SLICE
    ensure
      @resting -= 1
      @is_roused = false
      @is_watched = false if watches
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def nudge
      return if @is_nudged
      @is_nudged = true
      @nudge.write_nonblock('.', exception: false)
    end

    def close_waiting
      @waiting.each_key(&:close)
      @waiting.clear
      @wake.broadcast
      nil
    end
  end
end
