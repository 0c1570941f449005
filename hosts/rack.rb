# Forebay's host for Rack applications (Rack 2 and 3): a program that loads config.ru once and runs
# its requests in threads. It needs Ruby 3.1 and the application's own Rack. It is no web server for
# clients: Forebay (crates/forebay-workers) starts it, sends it requests over a Unix socket and
# passes its replies on. Forebay appends the files in rack/ to this file: crew.rb, environments.rb,
# request.rb, fields.rb, reply.rb and stream.rb.
#
# Each connection of Forebay carries one request after another. A request begins with the length of
# the variables (4 bytes) and the length of the body (8 bytes), both big-endian. The variables (NAME
# NUL value NUL ...) and the body follow. A reply is HTTP/1.1. Forebay sends no request on a
# connection before the previous reply has ended.
require 'socket'
require 'stringio'
require 'tempfile'
require 'uri'    # Rack::Lint of Rack 2 uses it without loading it

module Forebay
  # The process: its application, its socket and its connections.
  class Host
    attr_reader :app, :environments

    def initialize(app, socket, threads)
      @app = app
      @environments = Environments.new(threads > 1)
      @server = UNIXServer.new(socket)
      @server.listen(1024)
      @wakes, @wake = IO.pipe
      @crew = Crew.new(threads, -> { wake('r') })
      @is_child = false
    end

    # Serves until Forebay asks the process to stop. Finishes the running requests.
    def serve
      @stop = stop_handler(Process.pid)
      trap('TERM', @stop)
      trap('INT', @stop)
      loop do
        ready, = IO.select([@server, @wakes], nil, nil, @crew.lacks_thread? ? Crew::RETRY : nil)
        retry_thread
        break if ready&.include?(@wakes) && @wakes.read_nonblock(64).include?('.')
        socket = accept
        @crew.add(Connection.new(self, @crew, socket)) if socket.is_a?(UNIXSocket)
      end
      @server.close
      @crew.stop
    end

    # Tries again to start a thread that the system has refused, Crew::RETRY seconds after the
    # refusal.
    def retry_thread
      return @retry_at = nil unless @crew.lacks_thread?
      now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      @retry_at ||= now + Crew::RETRY
      return if now < @retry_at
      @retry_at = nil
      @crew.retry_start
    end

    # Returns a handler for signals. It stops this process, or ends a child that the application has
    # just forked.
    def stop_handler(own)
      proc do |signal|
        Process.pid == own ? wake('.') : end_by(signal)
      end
    end

    # Ends this process by a signal, at once. Ruby's own handler would raise an exception, and a child
    # that has not left the connection yet would answer the request with it.
    def end_by(signal)
      trap(signal, 'SYSTEM_DEFAULT')
      Process.kill(signal, Process.pid)
    end

    # Wakes `serve`: '.' to stop, 'r' to start a thread later.
    def wake(why)
      @wake.write_nonblock(why, exception: false)
    end

    # Accepts a connection. Returns no socket if no connection waits, or if the process has too many
    # open files. In the latter case, waits a moment, because the connection stays in the queue.
    def accept
      @server.accept_nonblock(exception: false)
    rescue Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM, Errno::ECONNABORTED => e
      warn("cannot accept a connection: #{e.message}")
      sleep(0.1)
      nil
    end

    # Returns true in a child that the application has forked.
    def child?
      @is_child
    end

    # Closes this process's copies of the sockets, in a child that the application has forked. So the
    # child can neither take requests nor write into replies. SIGTERM ends the child, not the worker.
    def leave
      @is_child = true
      %w[TERM INT].each do |signal|
        handler = trap(signal, 'DEFAULT')
        trap(signal, handler) unless handler.equal?(@stop)
      end
      [@server, @wake, @wakes].each(&:close)
      @crew.leave
    end
  end

  # Closes the host's sockets in children of the application.
  module Fork
    def _fork
      child = super
      Forebay.host&.leave if child.zero?
      child
    end

    # Ruby does not call `_fork` here. The parent process ends within this call.
    def daemon(...)
      result = super
      Forebay.host&.leave
      result
    end
  end

  class << self
    attr_reader :host

    def run(socket, file, threads)
      $stdout.sync = true
      ENV['RACK_ENV'] ||= 'production'
      app = load_application(file)
      GC.start
      Process.singleton_class.prepend(Fork)
      Process.setproctitle("rack #{file}")
      @host = Host.new(app, socket, threads)
      @host.serve
    end

    def log(error)
      text = error.is_a?(Exception) ? error.full_message(highlight: false) : error
      # Each line is a warning for Forebay, unlike what the application itself prints.
      text = text.gsub(/^/, '<4>') if $stderr.equal?(STDERR)
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
