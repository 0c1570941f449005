# Forebay's host for Rack applications (Rack 2 and 3): a program that loads config.ru once and runs
# its requests in threads. It needs Ruby 3.1 and the application's own Rack. It is no web server for
# clients: Forebay (crates/forebay-workers) starts it, sends it requests over a Unix socket and
# passes its replies on. Forebay appends rack/request.rb, rack/reply.rb and rack/stream.rb to this
# file.
#
# Each connection of Forebay carries one request after another. A request begins with the length of
# the variables (4 bytes) and the length of the body (8 bytes), both big-endian. The variables (NAME
# NUL value NUL ...) and the body follow. A reply is HTTP/1.1. Forebay opens at most as many
# connections as its configuration says.
require 'socket'
require 'stringio'
require 'tempfile'
require 'uri'    # Rack::Lint of Rack 2 uses it without loading it

module Forebay
  # The process: its application, its socket and its connections.
  class Host
    attr_reader :app, :is_threaded

    def initialize(app, socket, threads, connections)
      @app, @is_threaded = app, threads > 1
      @server = UNIXServer.new(socket)
      @server.listen(1024)
      @lock = Mutex.new
      @connections = {}    # each with its thread
      # Connections that an application has taken over (hijack) need no thread. So there may be more
      # connections than running requests.
      @turns = connections > threads ? Queue.new : nil
      threads.times { @turns.push(true) } if @turns
      @is_stopping = false
    end

    # Serves until Forebay asks the process to stop. Finishes the running requests.
    def serve
      wakes, wake = IO.pipe
      stop = proc { wake.write_nonblock('.', exception: false) }
      trap('TERM', stop)
      trap('INT', stop)
      loop do
        ready, = IO.select([@server, wakes])
        break if ready.include?(wakes)
        socket = @server.accept_nonblock(exception: false)
        start(socket) if socket.is_a?(UNIXSocket)
      end
      @is_stopping = true
      @server.close
      @lock.synchronize { @connections.dup }.each do |connection, thread|
        connection.stop
        thread.join
      end
    end

    # Runs one request, as soon as fewer than `threads` other requests run.
    def take_turn
      return yield unless @turns
      @turns.pop
      begin
        yield
      ensure
        @turns.push(true)
      end
    end

    def stopping?
      @is_stopping
    end

    def forget(connection)
      @lock.synchronize { @connections.delete(connection) }
    end

    # Closes this process's copies of the sockets, in a child that the application has forked. So the
    # child can neither take requests nor write into replies.
    def leave
      @server.close
      @connections.each_key(&:leave)
    end

    private

    def start(socket)
      connection = Connection.new(self, socket)
      @lock.synchronize do
        @connections[connection] = Thread.new { connection.run }
      end
    end
  end

  # Closes the host's sockets in children of the application.
  module Fork
    def _fork
      child = super
      Forebay.host&.leave if child.zero?
      child
    end
  end

  class << self
    attr_reader :host

    def run(socket, file, threads, connections)
      $stdout.sync = true
      ENV['RACK_ENV'] ||= 'production'
      app = load_application(file)
      GC.start
      Process.singleton_class.prepend(Fork)
      Process.setproctitle("rack #{file}")
      @host = Host.new(app, socket, threads, connections)
      @host.serve
    end

    def log(error)
      text = error.is_a?(Exception) ? error.full_message(highlight: false) : error
      $stderr.puts(text)
    rescue StandardError
      STDERR.puts("#{error.class}, which cannot be shown")
    end

    private

    # Returns the application of a config.ru. The gems of a Gemfile are used, as `bundle exec` does.
    def load_application(file)
      gemfile = ENV['BUNDLE_GEMFILE'] || 'Gemfile'
      require 'bundler/setup' if File.exist?(gemfile)
      require 'rack'
      found = Rack::Builder.parse_file(file)
      found.is_a?(Array) ? found.first : found    # Rack 2 returns options, too
    rescue LoadError => error
      hint = error.path == 'rack' ? ' (on Debian: apt-get install ruby-rack)' : ''
      abort("cannot load #{file}: #{error.full_message(highlight: false)}#{hint}")
    rescue SyntaxError, StandardError => error
      abort("cannot load #{file}: #{error.full_message(highlight: false)}")
    end
  end
end
