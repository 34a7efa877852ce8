; Source of llvm.ptx: llc-19 -march=nvptx64 -mcpu=sm_80 -mattr=+ptx70 llvm.ll -o llvm.ptx
; What LLVM makes of calls, allocas, switches, vectors, atomics, conversions with saturation, 128-bit arithmetic.
target triple = "nvptx64-nvidia-cuda"
@partial = internal addrspace(3) global [8 x float] undef, align 16
@table = internal addrspace(4) constant [4 x float] [float 1.0, float 2.0, float 4.0, float 8.0]
@count = internal addrspace(1) global i32 0
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare float @llvm.nvvm.shfl.sync.bfly.f32(i32, float, i32, i32)
declare void @llvm.nvvm.barrier0()
declare void @llvm.nvvm.membar.gl()
declare float @llvm.minimum.f32(float, float)
declare i8 @llvm.fptosi.sat.i8.f32(float)
declare i32 @llvm.fshl.i32(i32, i32, i32)

define internal float @store_square(float %x, ptr %p) noinline {
  %s = fmul float %x, %x
  store float %s, ptr %p
  ret float %s
}

; out[t] = 2 * clamp_i8(x) + switch(t % 5) where x comes through memory, a table, half precision and a function
define void @mixed(ptr addrspace(1) %out, ptr addrspace(1) align 16 %in, i64 %n) {
entry:
  %box = alloca [4 x float]
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %tx = zext i32 %t to i64
  %inside = icmp slt i64 %tx, %n
  br i1 %inside, label %work, label %done
work:
  %g = getelementptr <4 x float>, ptr addrspace(1) %in, i64 %tx
  %v = load <4 x float>, ptr addrspace(1) %g, align 16
  %a = extractelement <4 x float> %v, i32 0
  %b = extractelement <4 x float> %v, i32 3
  %sq = call float @store_square(float %a, ptr %box)
  %again = load float, ptr %box
  %sum = fadd float %sq, %again
  %m = call float @llvm.minimum.f32(float %sum, float %b)
  %i = and i32 %t, 3
  %tp = getelementptr [4 x float], ptr addrspace(4) @table, i32 0, i32 %i
  %tv = load float, ptr addrspace(4) %tp
  %d = fdiv float %m, %tv
  %h = fptrunc float %d to half
  %hh = fadd half %h, %h
  %f = fpext half %hh to float
  %c = call i8 @llvm.fptosi.sat.i8.f32(float %f)
  %ci = sext i8 %c to i64
  %big = sext i64 %ci to i128
  %big2 = add i128 %big, %big
  %low = trunc i128 %big2 to i64
  %k = urem i32 %t, 5
  switch i32 %k, label %e4 [ i32 0, label %e0
                             i32 1, label %e1
                             i32 2, label %e2
                             i32 3, label %e3 ]
e0:
  br label %join
e1:
  br label %join
e2:
  br label %join
e3:
  br label %join
e4:
  br label %join
join:
  %ph = phi i64 [ 100, %e0 ], [ 200, %e1 ], [ -300, %e2 ], [ 5000, %e3 ], [ 7, %e4 ]
  %r = add i64 %low, %ph
  %o = getelementptr i64, ptr addrspace(1) %out, i64 %tx
  store i64 %r, ptr addrspace(1) %o
  %old = atomicrmw add ptr addrspace(1) @count, i32 1 monotonic
  br label %done
done:
  ret void
}

; out[0] = sum of 256 numbers, out[1] = that of their rotated bits
define void @total(ptr addrspace(1) %out, ptr addrspace(1) %in) {
entry:
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %p = getelementptr float, ptr addrspace(1) %in, i32 %t
  %x0 = load float, ptr addrspace(1) %p
  %s1 = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x0, i32 16, i32 31)
  %x1 = fadd float %x0, %s1
  %s2 = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x1, i32 8, i32 31)
  %x2 = fadd float %x1, %s2
  %s3 = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x2, i32 4, i32 31)
  %x3 = fadd float %x2, %s3
  %s4 = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x3, i32 2, i32 31)
  %x4 = fadd float %x3, %s4
  %s5 = call float @llvm.nvvm.shfl.sync.bfly.f32(i32 -1, float %x4, i32 1, i32 31)
  %x5 = fadd float %x4, %s5
  %lane = and i32 %t, 31
  %first = icmp eq i32 %lane, 0
  br i1 %first, label %put, label %wait
put:
  %w = lshr i32 %t, 5
  %slot = getelementptr [8 x float], ptr addrspace(3) @partial, i32 0, i32 %w
  store float %x5, ptr addrspace(3) %slot
  br label %wait
wait:
  call void @llvm.nvvm.barrier0()
  %zero = icmp eq i32 %t, 0
  br i1 %zero, label %add, label %done
add:
  br label %loop
loop:
  %i = phi i32 [ 0, %add ], [ %i1, %loop ]
  %acc = phi float [ 0.0, %add ], [ %acc1, %loop ]
  %bits = phi i32 [ 0, %add ], [ %bits1, %loop ]
  %q = getelementptr [8 x float], ptr addrspace(3) @partial, i32 0, i32 %i
  %y = load float, ptr addrspace(3) %q
  %acc1 = fadd float %acc, %y
  %yi = fptoui float %y to i32
  %rot = call i32 @llvm.fshl.i32(i32 %yi, i32 %yi, i32 %i)
  %bits1 = xor i32 %bits, %rot
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, 8
  br i1 %more, label %loop, label %store
store:
  store float %acc1, ptr addrspace(1) %out
  %bf = uitofp i32 %bits1 to float
  %o1 = getelementptr float, ptr addrspace(1) %out, i32 1
  store float %bf, ptr addrspace(1) %o1
  br label %done
done:
  ret void
}
!nvvm.annotations = !{!0, !1}
!0 = !{ptr @mixed, !"kernel", i32 1}
!1 = !{ptr @total, !"kernel", i32 1}
