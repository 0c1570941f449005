# The reply of one request, for rack.rb.
module Forebay
  # Implements rack.early_hints.
  class EarlyHints
    def initialize(reply)
      @reply = reply
    end

    def call(headers)
      @reply.inform(headers)
    end
  end

  # Also implements rack.hijack, with `call`.
  class Reply
    WITHOUT_BODY = [204, 304].freeze
    # A longer body is not copied to its head.
    LONGEST_JOINED = 65_536
    # Lines of statuses, by number.
    STATUS_LINES = Hash.new do |lines, status|
      line = "HTTP/1.1 #{status} #{Rack::Utils::HTTP_STATUS_CODES[status]}\r\n".b.freeze
      lines[status] = line if Rack::Utils::HTTP_STATUS_CODES[status]
      line
    end

    def initialize(connection, env)
      @connection, @env, @lock = connection, env, connection.lock
      env['rack.hijack'] = self
      env['rack.early_hints'] = EarlyHints.new(self)
      env['rack.response_finished'] = @finished = []
      @is_begun = @is_over = @keeps = @is_lost = @is_closed = @has_chunks = false
      @size = nil
    end

    def inspect
      '#<Forebay::Reply>'
    end

    def keeps_connection?
      @keeps
    end

    # Returns true if Forebay has closed the connection.
    def lost?
      @is_lost
    end

    # Sends a response of the application.
    def deliver(status, headers, body)
      @status, @headers = status.to_i, headers
      raise ArgumentError, "#{status.inspect} is no status" unless (200..999).cover?(@status) || @status == 101
      lines, taker = head(headers)
      raise ArgumentError, 'status 101 without a stream' if @status == 101 && !(taker || is_stream(body))
      if taker
        send_stream(lines, taker)
      elsif is_stream(body)
        send_stream(lines, body)
      elsif @env['REQUEST_METHOD'] == 'HEAD' || WITHOUT_BODY.include?(@status)
        write(lines << "\r\n")
        @keeps = true
      else
        send_body(lines, body)
      end
    ensure
      body.close if body.respond_to?(:close) && !@is_closed
    end

    # Answers 500, or closes the connection so that no client takes a partial reply for a whole one.
    def abandon(error)
      @error = error
      Forebay.log(error)
      @keeps = false
      return if @is_begun || @connection.taken?
      text = "Internal Server Error\n"
      write("HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n" \
            "Content-Length: #{text.bytesize}\r\n\r\n#{text}")
      @keeps = true
    rescue *Connection::GONE
      nil
    end

    # Ends the request. From then on, objects that the application has kept cannot write into
    # replies.
    def finish
      # If the application has taken the connection, no other request follows on it.
      @lock.synchronize { @is_over = !@connection.taken? }
      return if @finished.empty?
      @finished.reverse_each do |callable|
        callable.call(@env, @status, @headers, @error)
      rescue StandardError => error
        Forebay.log(error)
      end
    end

    # Writes a part of the body of a stream.
    def write_chunk(data)
      write("#{data.bytesize.to_s(16)}\r\n", data, "\r\n") unless data.empty?
    end

    # Ends a stream. If the host has left the connection to the stream (`is_left`), closes the
    # connection.
    def end_stream(is_left)
      @lock.synchronize do
        put("0\r\n\r\n")
        @keeps = true
      end
      @connection.socket.close if is_left
    end

    # Implements rack.hijack: gives the connection to the application.
    def call
      @lock.synchronize do
        raise IOError, 'this request has its reply already' if @is_over || @is_begun || @connection.taken?
        @env['rack.hijack_io'] = @connection.take
      end
    end

    # Sends an interim reply.
    def inform(headers)
      fields = Fields.new("HTTP/1.1 103 Early Hints\r\n".b)
      headers.each { |name, values| fields.append(name, values) if Fields.kind(name) == :plain }
      lines = fields.finish
      @lock.synchronize { put(lines << "\r\n") unless @is_over || @is_begun }
    end

    private

    def write(*parts)
      @lock.synchronize do
        raise IOError, 'this reply has ended' if @is_over
        @is_begun = true
        put(*parts)
      end
    end

    # Writes the parts. May append the others to `first`. The first attempt to write does not give
    # up Ruby's global lock, because the socket nearly always has enough room.
    def put(first, *rest)
      socket = @connection.socket
      unless rest.empty?
        return socket.write(first, *rest) if rest.sum(&:bytesize) > LONGEST_JOINED
        # Only binary strings and strings of ASCII can always be joined.
        rest.each { |part| first << (part.ascii_only? ? part : part.b) }
      end
      sent = socket.write_nonblock(first, exception: false)
      return if sent == first.bytesize
      socket.write(sent.is_a?(Integer) ? first.byteslice(sent, first.bytesize) : first)
    rescue *Connection::GONE
      @is_lost = true
      raise
    end

    # Returns the head without its end, and the callable of a partial hijack.
    def head(headers)
      fields, taker = Fields.new(STATUS_LINES[@status].dup), nil
      headers.each do |name, value|
        case Fields.kind(name)
        when :plain then fields.append(name, value)
        when :length
          @size = Integer(value.is_a?(Array) ? value.first : value)
          fields.append(name, value)
        when :transfer_encoding then @has_chunks = true if value.to_s =~ /chunked/i
        when :hop_by_hop then fields.append(name, value) if @status == 101
        when :hijack then taker = value
        end
      end
      [fields.finish, taker]
    end

    def send_body(lines, body)
      pieces = pieces_of(body)
      if pieces
        send_whole(lines, pieces)
      elsif @has_chunks
        # Middleware of Rack 2 has encoded the body.
        write(lines << "Transfer-Encoding: chunked\r\n\r\n")
        body.each { |piece| write(piece) }
        return
      elsif (file = file_of(body))
        send_file(lines, file)
      else
        send_pieces(lines, body)
      end
      @keeps = true
    end

    # Returns the whole body if it is in memory. `to_ary` also closes it, since Rack 3.
    def pieces_of(body)
      return nil if @has_chunks
      return body if body.is_a?(Array)
      return nil if Rack.release.to_i < 3 || !body.respond_to?(:to_ary)
      @is_closed = true
      body.to_ary
    end

    def send_whole(lines, pieces)
      size = pieces.sum(&:bytesize)
      lines << "Content-Length: #{size}\r\n" unless @size
      raise ArgumentError, "a body of #{size} bytes, but a Content-Length of #{@size}" if @size && size != @size
      write(lines << "\r\n", *pieces)
    end

    def is_stream(body)
      body.respond_to?(:call) && !body.respond_to?(:each)
    end

    def file_of(body)
      return nil unless body.respond_to?(:to_path) && (path = body.to_path)
      file = File.open(path, 'rb')
      return file if file.stat.file? && (@size.nil? || @size == file.size)
      file.close
      nil
    rescue SystemCallError
      nil
    end

    def send_file(lines, file)
      size = file.size
      lines << "Content-Length: #{size}\r\n" unless @size
      write(lines << "\r\n")
      sent = IO.copy_stream(file, @connection.socket, size)
      raise IOError, 'a file became shorter while it was sent' if sent < size
    rescue *Connection::GONE
      @is_lost = true
      raise
    ensure
      file.close
    end

    # Sends a body piece by piece, the first piece together with the head.
    def send_pieces(lines, body)
      lines << (@size ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n")
      sent = 0
      body.each do |piece|
        next if piece.empty?
        sent += piece.bytesize
        raise ArgumentError, "the body is longer than its Content-Length of #{@size}" if @size && sent > @size
        frame = @size ? [piece] : ["#{piece.bytesize.to_s(16)}\r\n", piece, "\r\n"]
        write(*[lines, *frame].compact)
        lines = nil
      end
      raise ArgumentError, "a body of #{sent} bytes, but a Content-Length of #{@size}" if @size && sent < @size
      last = @size ? nil : "0\r\n\r\n"
      write(*[lines, last].compact) if lines || last
    end

    # Lets a streaming body, or the callable of a partial hijack, write the body.
    def send_stream(lines, body)
      if @status == 101
        write(lines << "Connection: Upgrade\r\n\r\n")
        return body.call(@connection.take)
      end
      if @env['REQUEST_METHOD'] == 'HEAD' || WITHOUT_BODY.include?(@status)
        write(lines << "\r\n")
        @keeps = true
        return
      end
      lines = lines.gsub(/^content-length:.*\r\n/i, '') if @size
      write(lines << "Transfer-Encoding: chunked\r\n\r\n")
      stream = Stream.new(self, @env['rack.input'])
      body.call(stream)
      # The application may write later, from another thread.
      @connection.take unless stream.leave
    end
  end
end
