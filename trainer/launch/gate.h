// Where processes wait until another one lets them go.
#pragma once

namespace fsdp::trainer {

// A pipe that is made before the processes fork: they wait at one end, and their parent has the other one.
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // For the parent: lets `count` processes through. Must be called once.
  void open(int count);
  // For a process that was forked: waits. Returns false if the parent ended, or destroyed its gate, without opening it.
  bool pass();

 private:
  void close_end(int& end);

  int inside_ = -1;
  int outside_ = -1;
};

}  // namespace fsdp::trainer
