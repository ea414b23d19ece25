/** The library of functions, for `FUNCTION LOAD`. */
export declare const LIBRARY: string;
