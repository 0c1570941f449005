# The environments of requests, for rack.rb.
module Forebay
  # Parses variables. Keeps environments by the bytes of their requests, because clients that poll
  # send the same request each time.
  class Environments
    MOST_KEPT = 256
    LONGEST_KEPT = 2048
    # If the kept environments were used again fewer than MOST_KEPT times, so many of the next ones
    # are not kept.
    PAUSE = 16 * MOST_KEPT

    def initialize(is_threaded)
      @base = {
        'rack.version' => [1, 6].freeze,
        'rack.multithread' => is_threaded,
        'rack.multiprocess' => true,
        'rack.run_once' => false,
        'rack.hijack?' => true
      }.freeze
      @known = {}
      @hits = 0
      # The threads share the hash without a lock. Only the global lock of CRuby makes this safe, so
      # other Rubies keep nothing.
      @pause = RUBY_ENGINE == 'ruby' ? 0 : Float::INFINITY
    end

    # Returns the environment of a request of these bytes, if it is known.
    def known(request)
      env = @known[request] or return nil
      @hits += 1
      # An application may change each string in place, so it gets copies.
      env.transform_values(&:+@).update(@base)
    end

    # Returns the environment with the variables in `block`. Keeps it for `request`, if given.
    def parse(block, request)
      fields = block.split("\0", -1)
      fields.pop
      env = Hash[*fields]
      env['rack.url_scheme'] = env['REQUEST_SCHEME'].dup
      keep(request, env) if request && request.bytesize <= LONGEST_KEPT
      env.update(@base)
    end

    private

    def keep(request, env)
      return @pause -= 1 if @pause.positive?
      if @known.size >= MOST_KEPT
        @known.clear
        @pause = PAUSE if @hits < MOST_KEPT
        @hits = 0
      end
      @known[request] = env.transform_values(&:-@).freeze
    end
  end
end
